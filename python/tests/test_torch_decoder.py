"""strata.torch.Engine(compute="strata"): models of transformers' that strata's own decoder computes, beside PyTorch's compute.
Skipped without torch, transformers and accelerate."""

from __future__ import annotations

import gc
import importlib.util
import logging
import os
import signal
import subprocess
import sys
import threading
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

if any(importlib.util.find_spec(name) is None for name in ("torch", "transformers", "accelerate")):
    print("torch, transformers or accelerate is not installed")
    sys.exit(77)

os.environ.update(HF_HUB_OFFLINE="1")

import torch
import transformers

import strata
import strata.torch
from strata.torch.decoder import NotPlain

from .common import InScratch, flip, python

SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2: dict[str, Any] = {
    "vocab_size": 96,
    "n_positions": 64,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
NO_DROPOUT: dict[str, Any] = {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
CONFIG: dict[str, Any] = {
    "train_batch_size": 4,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": False},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.01}},
}


def gpt2(**changes: Any) -> Any:
    torch.manual_seed(3)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2, **{**NO_DROPOUT, **changes}))


def llama(**changes: Any) -> Any:
    torch.manual_seed(3)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SMALL, **changes}))


def mixtral(**changes: Any) -> Any:
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**{**SMALL, "num_local_experts": 4, **changes}))


def batches(count: int, seed: int = 4) -> list[dict[str, torch.Tensor]]:
    """Of other lengths, one sequence in two padded."""
    random = torch.Generator().manual_seed(seed)
    made = []
    for i in range(count):
        ids = torch.randint(3, 96, (2, 20 + 4 * (i % 3)), generator=random)
        mask = torch.ones_like(ids)
        mask[1, 12:] = 0
        made.append({"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)})
    return made


def engine(module: Any, compute: str = "strata", config: dict[str, Any] | None = None, **more: Any) -> strata.torch.Engine:
    return strata.torch.Engine(module, config or CONFIG, compute=compute, seq_len=28, **more)


def trained(made: strata.torch.Engine, given: list[dict[str, torch.Tensor]]) -> list[float]:
    """Losses of micro-batches, and norms of steps."""
    told = []
    for batch in given:
        loss = made(**batch).loss
        made.backward(loss)
        step = made.step()
        told += [loss.item()] if step is None else [loss.item(), step.grad_norm]
    return told


class Decoder(InScratch):
    def assert_near(self, ours: list[float], theirs: list[float], relative: float = 1e-5) -> None:
        self.assertEqual(len(ours), len(theirs))
        for one, other in zip(ours, theirs):
            self.assertAlmostEqual(one, other, delta=relative * abs(other))

    def test_what_a_killed_run_leaves_goes_with_the_next(self) -> None:
        """Its weights, where it is killed as it begins."""
        place, others = self.scratch / "killed", self.scratch / "of-others"
        place.mkdir()
        others.mkdir()
        (others / "owner").touch()
        script = """if True:
            import os, signal, sys, tempfile
            tempfile.tempdir = sys.argv[1]
            import python.tests.test_torch_decoder as t
            from unittest import mock
            def planned(*what):
                print(*sorted(os.listdir(sys.argv[1] + "/" + os.listdir(sys.argv[1])[0] + "/model")))
                sys.stdout.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            with mock.patch("strata.torch.decoder.Plan", planned):
                t.engine(t.llama())
        """
        told = python(script, str(place)).stdout
        self.assertIn("model.safetensors", told)
        left = [path.name for path in place.iterdir() if path.name.startswith("strata-")]
        self.assertEqual(len(left), 1)
        (place / "strata-decoder-link").symlink_to(others)
        os.mkfifo(place / "fifo")
        (place / "strata-decoder-fifo").mkdir()
        (place / "fifo").rename(place / "strata-decoder-fifo" / "owner")
        with mock.patch("tempfile.tempdir", str(place)):
            one, other = engine(llama()), engine(llama())  # the second leaves the first one's
            names = {path.name for path in place.iterdir() if path.name.startswith("strata-")}
            self.assertEqual((len(names), names & set(left)), (4, set()))
            one.destroy()
            other.destroy()
            del one, other
            gc.collect()
        self.assertEqual(
            {path.name for path in place.iterdir() if path.name.startswith("strata-")},
            {"strata-decoder-link", "strata-decoder-fifo"},
        )
        self.assertEqual(os.listdir(others), ["owner"])

    def test_a_loss_of_evaluation_mode_is_refused_at_backward(self) -> None:
        """As of a model of from_pretrained(), which is in that mode."""
        module, (batch, *_) = llama(), batches(2)
        made = engine(module.eval())
        self.addCleanup(made.destroy)
        kept = [p.clone() for p in module.parameters()]
        for begun in (False, True):
            if begun:
                trained(made.train(), [batch])
                made.eval()
            loss = made(**batch).loss
            with self.assertRaisesRegex(RuntimeError, r"the module is in evaluation mode: call engine.train\(\)"):
                made.backward(loss)
            with self.assertRaisesRegex(RuntimeError, "no call of the engine in training"):
                made.train().backward(loss)
            self.assertTrue(all(p.grad is None for p in module.parameters()))
            with self.assertRaisesRegex(RuntimeError, "the step was dropped"):
                made.step()
        self.assertTrue(all(map(torch.equal, kept, module.parameters())))
        two, plain = batches(2), engine(llama())
        self.addCleanup(plain.destroy)
        self.assertEqual(trained(made, two), trained(plain, two))

    def test_ten_steps_are_those_of_pytorch(self) -> None:
        nvme = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme", "nvme_path": str(self.scratch)}}}
        for name, make, more in (("gpt2", gpt2, {}), ("llama", llama, {}), ("llama on nvme", llama, nvme)):
            with self.subTest(name):
                told, weights, evaluated = [], [], []
                for compute in ("torch", "strata"):
                    module = make()
                    made = engine(module, compute, {**CONFIG, **more})
                    told.append(trained(made, batches(20)))
                    made.eval()
                    with torch.no_grad():
                        evaluated.append(made(**batches(1)[0]).loss.item())
                    made.destroy()
                    weights.append(module.state_dict())
                self.assert_near(told[1], told[0])
                self.assert_near(evaluated[1:], evaluated[:1])
                for key, value in weights[0].items():
                    torch.testing.assert_close(weights[1][key], value, rtol=0, atol=2e-4)

    def test_the_ten_families(self) -> None:
        known = [
            (transformers.Qwen2ForCausalLM, transformers.Qwen2Config, {}),
            (transformers.MistralForCausalLM, transformers.MistralConfig, {"sliding_window": 8}),
            (transformers.Qwen3ForCausalLM, transformers.Qwen3Config, {"head_dim": 8}),
            (transformers.SmolLM3ForCausalLM, transformers.SmolLM3Config, {}),
            (transformers.Phi3ForCausalLM, transformers.Phi3Config, {}),
            (transformers.Gemma2ForCausalLM, transformers.Gemma2Config, {"head_dim": 8, "attn_implementation": "eager"}),
            (transformers.Gemma3ForCausalLM, transformers.Gemma3TextConfig, {"head_dim": 8, "attn_implementation": "eager"}),
            (transformers.Olmo2ForCausalLM, transformers.Olmo2Config, {}),
        ]
        for kind, config, more in known:
            with self.subTest(kind.__name__):
                told = []
                for compute in ("torch", "strata"):
                    torch.manual_seed(3)
                    made = engine(kind(config(**{**SMALL, **more})), compute)
                    told.append(trained(made, batches(4)))
                    made.destroy()
                self.assert_near(told[1], told[0])

    def test_weights_of_losses(self) -> None:
        """Losses that a script weighs, sums over a step's tokens, steps of fewer micro-batches, rates of groups."""
        told = []
        for compute in ("torch", "strata"):
            module = llama()
            bare = [p for p in module.parameters() if p.dim() == 1]
            groups = [
                {"params": [p for p in module.parameters() if p.dim() > 1], "weight_decay": 0.1},
                {"params": bare, "weight_decay": 0.0},
            ]
            made = engine(module, compute, parameters=groups)
            losses = []
            for number, batch in enumerate(batches(6)):
                made.boundary = number % 2 == 1 or number == 4
                loss = made(**batch, num_items_in_batch=torch.tensor(50), use_cache=False, return_dict=False)[0]
                made.backward(loss * (1 + number), divide=False)
                step = made.step()
                losses += [loss.item()] if step is None else [loss.item(), step.grad_norm]
                for group in made.optimizer.param_groups:
                    group["lr"] *= 0.9
            told.append(losses)
            made.destroy()
        self.assert_near(told[1], told[0])

    def test_precisions(self) -> None:
        for precision in ("bf16", "fp16"):
            with self.subTest(precision):
                told = []
                for compute in ("torch", "strata"):
                    module = llama()
                    made = engine(module, compute, {**CONFIG, "bf16": {}, precision: {"enabled": True}})
                    told.append(trained(made, batches(8)))
                    self.assertEqual(
                        next(module.parameters()).dtype, {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
                    )
                    made.destroy()
                self.assert_near(told[1], told[0], 0.03)

    def test_a_run_goes_on_and_is_exported(self) -> None:
        module = llama()
        made = engine(module, save=self.scratch / "own")
        trained(made, batches(4))
        made.save(self.scratch / "saves", client_state={"epoch": 1})
        rest = trained(made, batches(4, seed=9))
        made.save(self.scratch / "saves")
        made.saved(wait=True)
        module.save_pretrained(self.scratch / "module")
        made.destroy()
        again = engine(llama(), save=self.scratch / "other")
        self.assertEqual(again.load(self.scratch / "saves", "global_step2"), {"epoch": 1})
        strata.export(self.scratch / "saves", self.scratch / "exported")
        flip(self.scratch / "saves" / "global_step4" / "strata" / "set.0")
        with self.assertRaisesRegex(strata.Error, "set.0"):
            again.load(self.scratch / "saves")
        self.assertEqual(trained(again, batches(4, seed=9)), rest)
        again.destroy()
        for name in ("exported", "module"):
            loaded = transformers.AutoModelForCausalLM.from_pretrained(self.scratch / name)
            for key, value in module.state_dict().items():
                self.assertTrue(torch.equal(loaded.state_dict()[key], value), key)

    def test_weights_that_are_set_count(self) -> None:
        told = []
        for compute in ("torch", "strata"):
            module = gpt2()
            made = engine(module, compute)
            losses = trained(made, batches(2))
            module.load_state_dict({key: value * 0.5 for key, value in module.state_dict().items()})
            losses += trained(made, batches(4))
            told.append(losses)
            if compute == "strata":
                with torch.no_grad():
                    module.transformer.wte.weight.mul_(2)
                with self.assertRaisesRegex(RuntimeError, r"transformer.wte.weight was set .* flush\(\) comes before"):
                    trained(made, batches(1))
            made.destroy()
        self.assert_near(told[1], told[0])

    def test_what_is_not_plain_is_named(self) -> None:
        frozen = llama()
        frozen.lm_head.weight.requires_grad_(False)
        hooked = llama()
        hooked.model.norm.register_forward_hook(lambda *_: None)
        cases = [
            (torch.nn.Linear(2, 2), {}, "Linear is no model of transformers'"),
            (gpt2(attn_pdrop=0.1), {}, "attn_dropout drops out 0.1"),
            (llama(attention_dropout=0.5), {}, "attention_dropout is 0.5"),
            (frozen, {}, "lm_head.weight is not trained"),
            (hooked, {}, "model.norm has hooks"),
            (mixtral(), {}, "MixtralForCausalLM has experts"),
            (mixtral(output_router_logits=True), {}, "MixtralForCausalLM has experts"),
            (llama(), {"layers": "model.layers"}, "layers are named"),
            (
                transformers.BertForMaskedLM(
                    transformers.BertConfig(hidden_dropout_prob=0, attention_probs_dropout_prob=0, num_hidden_layers=1)
                ),
                {},
                "bert",
            ),
            (llama(), {"parameters": [{"params": list(llama().parameters())}]}, "none of the model's"),
        ]
        for module, more, words in cases:
            with self.subTest(words), self.assertRaisesRegex(ValueError, words):
                engine(module, **more)
        odd = llama()
        groups = [
            {"params": [odd.lm_head.weight], "weight_decay": 0.1},
            {"params": [p for n, p in odd.named_parameters() if n != "lm_head.weight"]},
        ]
        with self.assertRaisesRegex(NotPlain, "weight_decay of"):
            engine(odd, parameters=groups)
        with self.assertRaisesRegex(NotPlain, "strata.seq_len"):
            strata.torch.Engine(llama(), CONFIG, compute="strata")
        with self.assertRaisesRegex(ValueError, "compute is 'cuda'"):
            engine(llama(), "cuda")

    def test_calls_that_are_not_plain_are_named(self) -> None:
        made = engine(llama())
        batch = batches(1)[0]
        ids = batch["input_ids"]
        embedded = {"inputs_embeds": torch.zeros(2, 8, 32), "labels": ids[:, :8]}
        cases: list[tuple[dict[str, Any], str]] = [
            ({"input_ids": ids}, "labels"),
            (embedded, "input_ids"),
            ({**batch, "output_hidden_states": True}, "output_hidden_states"),
            ({**batch, "position_ids": torch.zeros_like(ids)}, "position_ids"),
            ({**batch, "attention_mask": batch["attention_mask"].flip(1)}, "attention_mask"),
            ({**batch, "attention_mask": torch.ones(2, 1, 20, 20)}, "attention_mask"),
            ({**batch, "labels": ids}, "labels of -100"),
            ({"input_ids": ids * 0, "labels": ids}, "token 0 pads"),
            ({"input_ids": ids.repeat(2, 1), "labels": ids.repeat(2, 1)}, "4 sequences of 20 tokens"),
            ({"input_ids": ids.repeat(1, 2), "labels": ids.repeat(1, 2)}, "2 sequences of 40 tokens"),
        ]
        for given, words in cases:
            with self.subTest(words), self.assertRaisesRegex(NotPlain, words):
                made(**given)
        before = trained(made, batches(2))  # nothing of these has been counted
        made.destroy()
        other = engine(llama())
        self.assertEqual(trained(other, batches(2)), before)
        first = other(**batch).loss
        with self.assertRaisesRegex(RuntimeError, "second forward"):
            other(**batch)
        with self.assertRaisesRegex(RuntimeError, "dropped"):
            other.step()
        with self.assertRaisesRegex(RuntimeError, "an earlier step"):
            other.backward(first)
        with self.assertRaisesRegex(AttributeError, "logits"):
            _ = other(**batch).logits
        handle = other.module.model.norm.register_forward_hook(lambda *_: None)
        with self.assertRaisesRegex(NotPlain, "model.norm has hooks"):
            other(**batch)
        handle.remove()
        other.drop()
        trained(other, batches(2))
        with self.assertRaisesRegex(RuntimeError, "another backward"):
            other.module(**batch).loss.backward()
            trained(other, batches(1))
        other.destroy()

    def test_a_full_temporary_directory_is_named_and_auto_goes_on(self) -> None:
        error = OSError(28, "No space left on device")
        full = mock.patch.object(transformers.LlamaForCausalLM, "save_pretrained", side_effect=error)
        with full, self.assertRaisesRegex(NotPlain, "No space left on device.*TMPDIR"):
            engine(llama(), "strata")
        with full:
            made = engine(llama(), "auto")
        self.assertEqual(trained(made, batches(2)), trained(engine(llama(), "torch"), batches(2)))
        made.destroy()

    def test_auto_says_what_it_took(self) -> None:
        with self.assertLogs("strata", logging.INFO) as log:
            engine(llama(), "auto").destroy()
            made = engine(gpt2(attn_pdrop=0.1), "auto")
        trained(made, batches(2))
        made.destroy()
        lines = [line for line in log.output if "compute auto" in line]
        self.assertEqual(len(lines), 2, log.output)
        self.assertIn("strata's decoder", lines[0])
        self.assertIn("PyTorch, since transformer.h.0.attn.attn_dropout drops out 0.1", lines[1])

    def test_interrupts_and_drops(self) -> None:
        made = engine(llama())
        before = trained(made, batches(2))
        made.backward(made(**batches(1)[0]).loss)
        made.drop()
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with self.assertRaises(KeyboardInterrupt):
            while True:
                trained(made, batches(1))
        timer.join()
        trained(made, batches(4))
        made.destroy()
        self.assertEqual(trained(engine(llama()), batches(2)), before)

    def test_an_exit_within_a_step_ends(self) -> None:
        script = (
            "from python.tests.test_torch_decoder import *\n"
            "made = engine(llama())\n"
            "made.backward(made(**batches(1)[0]).loss)\n"
            "print('here')\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            cwd=Path(__file__).parents[2],
        )
        self.assertEqual((done.returncode, done.stdout.split()[-1:]), (0, ["here"]), done.stderr)
        self.assertNotIn("Error", done.stderr)


if __name__ == "__main__":
    unittest.main()
