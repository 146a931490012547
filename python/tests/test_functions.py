"""The plain functions give what the program gives."""

from __future__ import annotations

import inspect
import json
import math
import re
import subprocess
import unittest

import strata
from strata import _said, layers

from .common import HERE, PROGRAM, ROOT, TINY, InScratch


def program(*words: object) -> list[dict[str, object]]:
    done = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, check=False)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


class Planning(InScratch):
    def test_a_plan_is_the_programs(self) -> None:
        config = self.scratch / "plan.json"
        config.write_text(json.dumps(TINY))
        machine = strata.Machine(gpu="4090", ram="128GB", drives=["gen4:2TBx2"])
        made = strata.plan("nano", config, machine=machine, steps=100)
        words = ("--gpu", "4090", "--ram", "128GB", "--drive", "gen4:2TBx2", "--max-steps", 100, "--json")
        (told,) = program("plan", "--model", "nano", "--config", config, *words)
        self.assertEqual(made, told)
        self.assertTrue(made["fits"])
        self.assertIn("4090", str(made))
        self.assertTrue(made._repr_html_().startswith("<pre>"))

    def test_what_does_not_fit_is_an_answer(self) -> None:
        made = strata.plan("llama-3-8b", overrides={"strata.device_memory": "1GiB", "strata.host_memory": "1GiB"})
        self.assertFalse(made["fits"])
        self.assertGreater(made["tiers"]["host"]["minimum"] + made["tiers"]["device"]["minimum"], 1 << 30)

    def test_advice_has_a_configuration_that_plans_the_same(self) -> None:
        machine = strata.Machine(gpu="4090", ram="64GB", drives=["gen4:2TB"])
        advice = strata.advise("nano", machine=machine, seq_len=128, batch_tokens=1024)
        self.assertTrue(advice["fits"])
        made = strata.plan("nano", advice["config"], machine=machine, seq_len=128)
        self.assertEqual(made["tiers"], advice["plan"]["tiers"])

    def test_check_names_each_key_and_problem(self) -> None:
        checked = strata.check({"train_batch_size": 4, "no_such_key": 1, "bf16": {"enabled": True}})
        rows = {row["path"]: row for row in checked}
        self.assertEqual((rows["train_batch_size"]["origin"], rows["no_such_key"]["verdict"]), ("file", "rejected"))
        self.assertTrue(any("no_such_key" in problem for problem in checked.problems))
        self.assertIn("<th>path</th>", checked._repr_html_())
        self.assertEqual(strata.check({"train_batch_size": 4}).problems, [])

    def test_info_is_the_programs(self) -> None:
        self.assertEqual(strata.info().keys(), program("info", "--json")[0].keys())


class Training(InScratch):
    def test_a_run_is_the_programs(self) -> None:
        config = self.scratch / "ds.json"
        config.write_text(json.dumps(TINY))
        arguments = {"steps": 4, "seq_len": 64, "eval_data": self.book, "eval_every": 2}
        steps = list(strata.train("nano", self.book, config=TINY, machine=HERE, out=self.scratch / "ours", **arguments))
        lines = program(
            *("train", "--model", "nano", "--data", self.book, "--config", config, "--max-steps", 4, "--seq-len", 64),
            *(
                "--eval-data",
                self.book,
                "--eval-every",
                2,
                "--out",
                self.scratch / "theirs",
                "--digest",
                "--json",
                "--machine",
                HERE.file,
            ),
        )
        for step, line in zip(steps, lines[1:5], strict=True):
            self.assertEqual(step.keys(), line.keys())
            for key in ("step", "epoch", "loss", "bits_per_byte", "grad_norm", "lr", "tokens", "tokens_total", "bytes"):
                self.assertEqual(step[key], line[key], key)
            self.assertEqual(step.get("eval_loss"), line.get("eval_loss"))
        self.assertEqual(strata.digest(self.scratch / "ours"), lines[-1]["summary"]["weights_digest"])
        self.assertIn("<td>4</td>", strata.Table(steps)._repr_html_())

    def test_a_run_that_is_left_goes_on_with_the_same_bits(self) -> None:
        whole = list(
            strata.train("nano", self.book, config=TINY, machine=HERE, steps=5, seq_len=64, out=self.scratch / "whole")
        )
        run = strata.train("nano", self.book, config=TINY, machine=HERE, steps=5, seq_len=64, save=self.scratch / "saved")
        self.assertEqual(next(run)["loss"], whole[0]["loss"])
        next(run)
        run.close()
        out = self.scratch / "gone-on"
        rest = strata.train(
            "nano", self.book, config=TINY, machine=HERE, steps=5, seq_len=64, save=self.scratch / "saved", resume=True, out=out
        )
        self.assertEqual([step["step"] for step in rest], [3, 4, 5])
        self.assertEqual(strata.digest(out), strata.digest(self.scratch / "whole"))
        strata.export(self.scratch / "saved", self.scratch / "exported")
        self.assertEqual(strata.digest(self.scratch / "exported"), strata.digest(out))

    def test_resume_needs_a_directory(self) -> None:
        with self.assertRaisesRegex(strata.Error, "directory of checkpoints.*save") as raised:
            next(strata.train("nano", self.book, config=TINY, machine=HERE, steps=2, seq_len=64, resume=True))
        self.assertEqual((raised.exception.key, raised.exception.exit_code), ("strata.save", 2))

    def test_epochs_are_counted_in_steps(self) -> None:
        run = list(strata.train("nano", self.book, config=TINY, machine=HERE, epochs=0.5, seq_len=64, shuffle=False))
        self.assertEqual([run[0]["step"], run[-1]["epoch"]], [1, 0.5])

    def test_a_run_that_is_left_writes_what_it_has_learnt(self) -> None:
        for step in strata.train("nano", self.book, config=TINY, machine=HERE, steps=9, seq_len=64, out=self.scratch / "left"):
            if step["step"] == 2:
                break
        self.assertEqual(len(strata.digest(self.scratch / "left")), 32)

    def test_generate_continues_a_text(self) -> None:
        for step in strata.train("nano", self.book, config=TINY, machine=HERE, steps=1, seq_len=64, out=self.scratch / "model"):
            self.assertTrue(math.isfinite(step["loss"]))
        with strata.Generator(self.scratch / "model", temperature=0, context=64) as generator:
            text = "".join(generator.stream("the plan", max_tokens=8))
            tokens = list(generator.tokens(b"the plan", max_tokens=8))
        self.assertEqual(len(tokens), 8)
        self.assertEqual(text, bytes(tokens).decode("utf-8", "replace"))
        again = strata.generate(self.scratch / "model", "the plan", max_tokens=8, temperature=0)
        self.assertEqual(again, text)


class Tokens(unittest.TestCase):
    def test_texts_and_conversations(self) -> None:
        with strata.Tokenizer(ROOT / "tests/golden/chat/qwen") as tokenizer:
            ids = tokenizer.encode("Grüße aus 北京 \U0001f600")
            self.assertEqual(tokenizer.decode(ids), "Grüße aus 北京 \U0001f600")
            self.assertEqual("".join(tokenizer.stream(ids)), "Grüße aus 北京 \U0001f600")
            with tokenizer.chat([{"role": "user", "content": "Who are you?"}], date="2026-07-31") as chat:
                first = chat.ids
                chat.add("assistant", "I am.")
                self.assertGreater(len(chat.ids), len(first))
            self.assertIn("Who are you?", tokenizer.decode(first))
            self.assertEqual(tokenizer.encode(""), [])


class Bench(unittest.TestCase):
    def test_rows_are_a_table(self) -> None:
        table = strata.bench("optim", params="4K", layout="split", repeats=1, isa="scalar")
        self.assertIn("scalar", table.column("variant"))
        with self.assertRaises(strata.Error) as raised:
            strata.bench("no-such-bench")
        self.assertEqual(raised.exception.exit_code, 2)


class Sentences(unittest.TestCase):
    """Of the library: they name members of its options, for which a caller here needs other words."""

    def keys(self) -> set[str]:
        """Whatever a sentence may name: the program has a row for each, to say its own option."""
        table = (ROOT / "cli" / "options" / "args_table.c").read_text()
        words = {word for text in re.findall(r'"((?:[a-z]+\.[a-z_]+ ?)+)"', table) for word in text.split()}
        return {word for word in words if not word.startswith(("strata.", "optimizer.", "scheduler."))}

    def test_each_is_in_words_of_python(self) -> None:
        options = set(re.findall(r'\{"([a-z-]+)"', (ROOT / "cli" / "options" / "args_table.c").read_text()))
        functions = (strata.plan, strata.advise, strata.train, strata.export, strata.Generator, strata.Generator.stream)
        takers = (*functions, strata.Tokenizer.chat, strata.check)
        arguments = {name for one in takers for name in inspect.signature(one).parameters}
        classes = {"Machine": strata.Machine, "Comm": layers.Comm}
        self.assertGreater(len(self.keys()), 30)
        for key in self.keys():
            with self.subTest(key):
                said = _said.in_python(f"{key} is wrong (use {key}): give {key}.")
                self.assertNotIn(key, said)
                word = said.split(" is wrong")[0]
                if word.startswith("--"):
                    self.assertIn(word[2:], options)
                elif "." in word:
                    kind, _, name = word.partition(".")
                    self.assertIn(name, inspect.signature(classes[kind]).parameters)
                elif word != "the number of steps":
                    self.assertIn(word, arguments)

    def test_files_and_keys_of_configurations_stay(self) -> None:
        for text in ("out/model.safetensors", "strata.machine.file", "./train.out/x", "my-model.seed", "config.json"):
            self.assertEqual(_said.in_python(text), text)

    def test_what_is_raised_and_printed(self) -> None:
        for machine, words in (
            (strata.Machine(gpu="nonsuch"), 'Machine.gpu: no card "nonsuch"'),
            (strata.Machine(ram="64GB"), "Machine.ram needs Machine.gpu"),
            (strata.Machine(device="tpu"), "Machine.device: unknown device"),
        ):
            with self.assertRaisesRegex(strata.Error, words) as raised:
                strata.info(machine)
            self.assertNotIn("machine.", str(raised.exception))
        self.assertIn("Machine.drives 7GB/s:2TB adds one", str(strata.info(strata.Machine(gpu="4090"))))
        with self.assertRaisesRegex(strata.Error, r"zero_optimization.stage \(overrides\): 9"):
            strata.plan("nano", overrides={"zero_optimization.stage": 9})


if __name__ == "__main__":
    unittest.main()
