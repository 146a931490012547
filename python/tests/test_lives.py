"""Ctrl-C, fork, exit, handles that are dropped, and wrong uses: a clear exception, and nothing is left behind."""

from __future__ import annotations

import gc
import os
import signal
import threading
import unittest
from collections.abc import Callable, Iterable
from unittest import mock

import strata
from strata._calls import blocked

from .common import HERE, ROOT, TINY, InScratch, open_files, python, threads


class Interrupts(InScratch):
    def test_calls_run_where_signals_are_blocked(self) -> None:
        masked = blocked(lambda: signal.pthread_sigmask(signal.SIG_BLOCK, []))
        self.assertLessEqual({signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1}, masked)
        self.assertNotIn(signal.SIGSEGV, masked)
        self.assertNotIn(signal.SIGINT, signal.pthread_sigmask(signal.SIG_BLOCK, []))

    def test_ctrl_c_while_the_mask_is_set_leaves_none(self) -> None:
        real = signal.pthread_sigmask

        def interrupted(how: int, mask: Iterable[int]) -> object:
            before = real(how, mask)
            if how == signal.SIG_BLOCK and mask:
                raise KeyboardInterrupt
            return before

        with mock.patch("signal.pthread_sigmask", interrupted), self.assertRaises(KeyboardInterrupt):
            blocked(lambda: None)
        self.assertEqual(real(signal.SIG_BLOCK, []), set())

    def test_ctrl_c_ends_the_loop_after_its_step_and_nothing_is_lost(self) -> None:
        saved, out = self.scratch / "saved", self.scratch / "out"
        arguments = {"config": TINY, "machine": HERE, "steps": 40, "seq_len": 64}
        seen = []
        with self.assertRaises(KeyboardInterrupt):
            for step in strata.train("nano", self.book, save=saved, **arguments):
                seen.append(step)
                if len(seen) == 3:
                    threading.Timer(0.005, os.kill, (os.getpid(), signal.SIGINT)).start()
        rest = list(strata.train("nano", self.book, save=saved, resume=True, out=out, **arguments))
        self.assertLess(len(seen), 40)
        self.assertLessEqual(rest[0]["step"], len(seen) + 2)
        self.assertGreater(rest[0]["step"], len(seen))
        for _ in strata.train("nano", self.book, out=self.scratch / "whole", **arguments):
            pass
        self.assertEqual(strata.digest(out), strata.digest(self.scratch / "whole"))

    def test_ctrl_c_ends_work_that_reports_progress(self) -> None:
        def raises(what: str, done: int, total: int) -> None:
            os.kill(os.getpid(), signal.SIGINT)

        with self.assertRaises(KeyboardInterrupt):
            strata.advise("llama-3-8b", machine=strata.Machine(gpu="4090"), progress=raises)

    def test_what_a_progress_function_raises_comes_through(self) -> None:
        def raises(what: str, done: int, total: int) -> None:
            raise LookupError(what)

        with self.assertRaisesRegex(LookupError, "comparing"):
            strata.advise("gpt2", machine=strata.Machine(gpu="4090"), progress=raises)


class Lives(InScratch):
    def test_what_is_dropped_is_closed(self) -> None:
        before = (threads(1), open_files())
        run = strata.train("nano", self.book, config=TINY, machine=HERE, steps=3, seq_len=64)
        next(run)
        self.assertGreater(threads(), before[0])
        del run
        io = strata.io.IO()
        io.file(self.scratch / "dropped", "c").write(b"1234").start()
        del io
        gc.collect()
        self.assertEqual((threads(before[0]), open_files()), before)

    def test_a_closed_handle_says_so(self) -> None:
        tokenizer = strata.Tokenizer(ROOT / "tests/golden/chat/qwen")
        tokenizer.close()
        tokenizer.close()
        with self.assertRaisesRegex(ValueError, "Tokenizer is closed"):
            tokenizer.encode("text")

    def test_a_program_may_end_with_everything_open(self) -> None:
        swap = self.scratch / "swap"
        swap.mkdir()
        done = python(
            "import strata, sys\n"
            "config = {'train_batch_size': 1, 'zero_optimization': {'stage': 3, 'offload_optimizer': {'device': 'nvme'}},\n"
            "          'strata': {'nvme': [sys.argv[2]]}}\n"
            "run = strata.train('nano', sys.argv[1], config=config, steps=9, seq_len=64)\n"
            "next(run)\n"
            "io = strata.io.IO()\n"
            "io.file(sys.argv[2] + '/left', 'c').write(b'1234').start()\n"
            "tokenizer = strata.Tokenizer(sys.argv[3])\n"
            "cycle = [run, io, tokenizer]\n"
            "cycle.append(cycle)\n",
            *(str(self.book), str(swap), str(ROOT / "tests/golden/chat/qwen")),
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual([path.name for path in swap.iterdir() if path.is_file()], ["left"])

    def test_a_child_of_fork_leaves_its_parents_handles_alone(self) -> None:
        done = python(
            "import os, strata, sys, gc\n"
            "machine = strata.Machine(file=sys.argv[2])\n"
            "run = strata.train('nano', sys.argv[1], steps=3, seq_len=64, machine=machine)\n"
            "next(run)\n"
            "io = strata.io.IO()\n"
            "child = os.fork()\n"
            "if child == 0:\n"
            "    try:\n"
            "        next(run)\n"
            "    except strata.Error as error:\n"
            "        assert error.status == 'E_INVAL', error\n"
            "    io.close()\n"
            "    assert strata.check({}).problems == []\n"
            "    own = list(strata.train('nano', sys.argv[1], steps=1, seq_len=64, machine=machine))\n"
            "    del run, io\n"
            "    gc.collect()\n"
            "    sys.exit(7 if len(own) == 1 else 1)\n"
            "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
            "io.close()\n"
            "print(len(list(run)))\n",
            *(str(self.book), str(HERE.file)),
        )
        self.assertEqual((done.returncode, done.stdout), (0, "2\n"), done.stderr)


class WrongUses(InScratch):
    def test_each_is_a_clear_exception_and_leaves_nothing(self) -> None:
        book, scratch = self.book, self.scratch
        (scratch / "empty.txt").write_text("")
        (scratch / "broken.json").write_text("{")
        (scratch / "taken").mkdir()
        (scratch / "taken" / "config.json").write_text("{}")

        def train(**changes: object) -> Callable[[], object]:
            arguments = {"model": "nano", "data": book, "config": TINY, "machine": HERE, "steps": 1, "seq_len": 64, **changes}
            return lambda: list(strata.train(**arguments))  # type: ignore[arg-type]

        wrong: dict[str, Callable[[], object]] = {
            "no such preset": lambda: strata.plan("no-such-model"),
            "no such directory": train(model="./no/such/model"),
            "a NUL in a name": lambda: strata.plan("na\0no"),
            "a model that is no text": lambda: strata.plan(5),  # type: ignore[arg-type]
            "no such configuration": lambda: strata.plan("nano", scratch / "missing.json"),
            "a configuration that is no JSON": lambda: strata.plan("nano", scratch / "broken.json"),
            "an unknown key": lambda: strata.plan("nano", {"train_batchsize": 1}),
            "a value of another type": lambda: strata.plan("nano", {"train_batch_size": "many"}),
            "batches that do not go together": lambda: strata.plan(
                "nano", {"train_batch_size": 3, "train_micro_batch_size_per_gpu": 2}
            ),
            "a configuration that is a set": lambda: strata.plan("nano", {1, 2}),  # type: ignore[arg-type]
            "an override that JSON has not": lambda: strata.plan("nano", overrides={"optimizer.params.lr": object()}),
            "an override of no key": lambda: strata.plan("nano", overrides={"no.such.key": 1}),
            "a sequence over the context": lambda: strata.plan("nano", seq_len=10**6),
            "a negative sequence": lambda: strata.plan("nano", seq_len=-1),
            "no such card": lambda: strata.plan("nano", machine=strata.Machine(gpu="RTX 12345")),
            "no such drive": lambda: strata.plan("nano", machine=strata.Machine(gpu="4090", drives=["floppy"])),
            "no such device": lambda: strata.plan("nano", machine=strata.Machine(device="tpu")),
            "no such machine file": lambda: strata.plan("nano", machine=strata.Machine(file="missing.json")),
            "ranks that are no whole nodes": lambda: strata.plan("nano", machine=strata.Machine(gpu="4090", ranks=3, nodes=2)),
            "advice for no model": lambda: strata.advise("no-such-model"),
            "advice by missing data": lambda: strata.advise("nano", data=["missing.bin"], epochs=1),
            "no data": train(data=[]),
            "missing data": train(data="missing.txt"),
            "empty data": train(data=scratch / "empty.txt"),
            "a table": train(data="rows.parquet"),
            "no steps": train(steps=0, config={"scheduler": {"type": "WarmupDecayLR"}}),
            "negative steps": train(steps=-1),
            "a result where a model is": train(out=scratch / "taken"),
            "a result below a file": train(out=book / "model"),
            "checkpoints below a file": train(save=book / "saved"),
            "no room": train(model="llama-3-8b", overrides={"strata.host_memory": "1MiB", "strata.device_memory": "1MiB"}),
            "no tokenizer": train(model="gpt2", tokenizer=scratch / "taken"),
            "no tokenizer there": lambda: strata.Tokenizer(scratch),
            "a tokenizer that is no text": lambda: strata.Tokenizer(None),  # type: ignore[arg-type]
            "generate without a model": lambda: strata.generate(scratch / "missing", "text"),
            "generate with a broken model": lambda: strata.generate(scratch / "taken", "text"),
            "export of nothing": lambda: strata.export(scratch / "missing", scratch / "exported"),
            "merge of nothing": lambda: strata.export(scratch / "missing", scratch / "exported", merge=True),
            "digest of nothing": lambda: strata.digest(scratch / "missing"),
            "no such bench": lambda: strata.bench("no-such-bench"),
            "a bench with a wrong option": lambda: strata.bench("optim", params="many"),
        }
        self.assertGreaterEqual(len(wrong), 40)
        before = (threads(1), open_files(), sorted(os.listdir(scratch)))
        for what, use in wrong.items():
            with self.subTest(what):
                with self.assertRaises((strata.Error, TypeError, ValueError, OSError, AttributeError)) as raised:
                    use()
                self.assertGreater(len(str(raised.exception)), 10)
        gc.collect()
        self.assertEqual((threads(before[0]), open_files(), sorted(os.listdir(scratch))), before)


if __name__ == "__main__":
    unittest.main()
