"""Keys of `strata` in a configuration: what an engine of a module does not follow is refused, or named.

The table has all of the program's keys."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

if any(importlib.util.find_spec(name) is None for name in ("torch", "transformers")):
    print("torch or transformers is not installed")
    sys.exit(77)

os.environ.update(HF_HUB_OFFLINE="1")

import torch
import transformers

import strata
import strata.deepspeed
import strata.torch

from .common import InScratch

CONFIG: dict[str, Any] = {
    "train_batch_size": 2,
    "bf16": {"enabled": False},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1}},
}
SIZES: dict[str, Any] = {
    **{"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"num_key_value_heads": 2, "max_position_embeddings": 32, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
}
KINDS = ("resident", "paged", "decoder")
HONOURED = ("honoured",) * 3
# A value, and what becomes of it in an engine that PyTorch computes, in one whose layers page, and in one that strata computes.
KEYS: dict[str, tuple[Any, tuple[str, str, str]]] = {
    "strata.device_memory": ("1GiB", HONOURED),
    "strata.host_memory": ("1GiB", HONOURED),
    "strata.cache": (0, HONOURED),
    "strata.nvme": (["SCRATCH"], HONOURED),
    "strata.save": ("SCRATCH/saves", HONOURED),
    "strata.save_every": (5, ("named",) * 3),
    "strata.keep": (3, HONOURED),
    "strata.keep_best": (1, ("named",) * 3),
    "strata.metrics": ("SCRATCH/lines.jsonl", HONOURED),
    "strata.chunk_size": (16384, HONOURED),
    "strata.update": ("speculative", ("named", "named", "honoured")),
    "strata.clip_rate": (0.1, ("named", "named", "honoured")),
    "strata.accumulation": ("vertical", ("named",) * 3),
    "strata.leaves": (1, HONOURED),
    "strata.wire": ("bf16", HONOURED),
    "strata.compute": ("torch", HONOURED),
    "strata.seq_len": (16, ("named", "named", "honoured")),
    "strata.boundary_bytes": (4096, ("named", "honoured", "named")),
    "strata.activations": ("kept", ("named", "named", "honoured")),
    "strata.activation_tier": ("host", ("named", "honoured", "honoured")),
    "strata.freeze": (["*norm*"], ("refused", "refused", "honoured")),
    "strata.lora": ({"r": 2}, ("refused",) * 3),
    "strata.quantization": ("nf4", ("refused",) * 3),
    "strata.router_aux_loss_coef": (0.5, ("named",) * 3),  # of a model without experts
    "strata.output_router_logits": (True, ("named",) * 3),
    "strata.decay_all": (False, ("refused",) * 3),
    "strata.moments": ("8bit", HONOURED),
    "strata.max_skipped": (3, HONOURED),
    "strata.threads": (1, HONOURED),
    "strata.device_deadline": (100, HONOURED),
    "strata.io_deadline": (100, HONOURED),
    "strata.comm_deadline": (100, HONOURED),
    "strata.watchdog": (True, ("named",) * 3),
    "strata.io_method": ("threads", HONOURED),
    "strata.isa": ("scalar", HONOURED),
    "strata.update_fetch": ("even", HONOURED),
    "strata.lr_scheduler.type": ("cosine_with_min_lr", HONOURED),
    "strata.lr_scheduler.warmup_steps": (1, HONOURED),
    "strata.lr_scheduler.warmup_ratio": (0.1, HONOURED),
    "strata.lr_scheduler.total_num_steps": (9, HONOURED),
    "strata.lr_scheduler.min_lr": (1e-5, HONOURED),
    "strata.lr_scheduler.min_lr_rate": (0.5, HONOURED),
    "strata.limits.upload": (1 << 40, HONOURED),
    "strata.limits.download": (1 << 40, HONOURED),
    "strata.limits.io": (1 << 40, HONOURED),
}
APART = ("strata.lr_scheduler.min_lr_rate", "strata.limits.io")  # not beside min_lr, and files


def llama() -> Any:
    torch.manual_seed(3)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))


def mixtral(**changes: Any) -> Any:
    torch.manual_seed(3)
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**SIZES, num_local_experts=4, **changes))


class Keys(InScratch):
    def config(self, values: dict[str, Any]) -> dict[str, Any]:
        made = json.loads(json.dumps(CONFIG))
        for path, value in values.items():
            section = made
            for name in path.split(".")[:-1]:
                section = section.setdefault(name, {})
            section[path.split(".")[-1]] = json.loads(json.dumps(value).replace("SCRATCH", str(self.scratch)))
        return made

    def made(self, kind: str, values: dict[str, Any], module: Any = None) -> strata.torch.Engine:
        config, more = self.config(values), {}
        if kind == "paged":
            config["zero_optimization"] = {"stage": 3, "offload_param": {"device": "cpu"}}
        if kind == "decoder":
            more = {"compute": "strata", "seq_len": 16}
        engine = strata.torch.Engine(llama() if module is None else module, config, **more)
        self.addCleanup(engine.destroy)
        return engine

    def heard(self, kind: str, values: dict[str, Any], module: Any = None) -> list[str]:
        with self.assertLogs("strata", "WARNING") as lines:
            strata.torch.engine.logging.getLogger("strata").warning("begins")
            self.made(kind, values, module).destroy()
        return lines.output[1:]

    def refused(self, words: str, kind: str, values: dict[str, Any], module: Any = None) -> Exception:
        with self.assertRaisesRegex((strata.Error, ValueError), words) as raised:
            self.made(kind, values, module)
        return raised.exception

    def test_the_table_has_all_keys_of_the_program(self) -> None:
        ours = {row["path"] for row in strata.check({}) if row["path"].startswith("strata.")}
        self.assertEqual(set(KEYS), ours)

    def test_each_is_honoured_named_or_refused(self) -> None:
        for at, kind in enumerate(KINDS):
            for wanted in ("honoured", "named"):
                values = {path: value for path, (value, told) in KEYS.items() if told[at] == wanted and path not in APART}
                if wanted == "named":
                    values["strata.save"] = KEYS["strata.save"][0] + kind  # which keep_best needs
                told = self.heard(kind, values)
                with self.subTest(kind, wanted=wanted):
                    for path in values:
                        count = sum(re.search(rf"{re.escape(path)}[ :]", line) is not None for line in told)
                        self.assertEqual(count, int(wanted == "named" and path != "strata.save"), f"{path}: {told}")
            for path, (value, told) in KEYS.items():
                if told[at] == "refused":
                    with self.subTest(kind, path=path):
                        self.assertIn(
                            path if at < 2 or path != "strata.lora" else "lora_A", str(self.refused("", kind, {path: value}))
                        )

    def test_values_that_ask_for_nothing_are_not_named(self) -> None:
        fine = {row["path"]: json.loads(json.dumps(row["value"])) for row in strata.check({})}
        paths = [
            path for path, (_, told) in KEYS.items() if "named" in told and path not in ("strata.watchdog", "strata.update")
        ]
        values: dict[str, Any] = {path: fine[path] for path in paths}
        values.update({path: int(value) for path, value in values.items() if value == "0"})
        values.update({path: value == "true" for path, value in values.items() if value in ("true", "false")})
        for kind in KINDS:
            self.assertEqual(self.heard(kind, {**values, "strata.watchdog": False, "strata.update": "serial"}), [])

    def test_an_auxiliary_loss_is_the_modules(self) -> None:
        coefficient, logits = "strata.router_aux_loss_coef", "strata.output_router_logits"
        own = {"router_aux_loss_coef": 0.25, "output_router_logits": True}
        for values, agrees, differs in (
            ({coefficient: 0.25}, own, {}),
            ({coefficient: 0.0}, {}, own),
            ({logits: True}, own, {"router_aux_loss_coef": 0.25}),
            ({coefficient: 0.5, logits: True}, {**own, "router_aux_loss_coef": 0.5}, own),
        ):
            with self.subTest(values):
                self.assertEqual(self.heard("resident", values, mixtral(**agrees)), [])
                for kind in ("resident", "paged"):
                    error = self.refused("MixtralForCausalLM, which adds its auxiliary loss", kind, values, mixtral(**differs))
                    self.assertEqual((error.exit_code, error.key in values), (2, True))
                    self.assertIn("from_pretrained()", error.remedy)
                with self.assertRaisesRegex(strata.Error, "auxiliary loss"):
                    strata.deepspeed.initialize(model=mixtral(**differs), config=self.config(values))
        self.refused("Linear, which is not known to take it", "resident", {coefficient: 0.5}, torch.nn.Linear(4, 4))
        self.assertEqual(self.heard("resident", {logits: False}, mixtral()), [])

    def test_what_decays_is_as_groups_say(self) -> None:
        def groups(module: torch.nn.Module) -> list[dict[str, Any]]:
            bias = [p for p in module.parameters() if p.dim() < 2]
            return [{"params": [p for p in module.parameters() if p.dim() > 1]}, {"params": bias, "weight_decay": 0.0}]

        for value in (False, True):
            module = torch.nn.Linear(4, 4)
            config = self.config({"strata.decay_all": value})
            for by_groups in (False, True):
                given = groups(module) if by_groups else None
                if value or by_groups:
                    strata.torch.Engine(module, config, parameters=given).destroy()
                    continue
                with self.assertRaisesRegex(strata.Error, "strata.decay_all false: bias has weight_decay 0.1"):
                    strata.torch.Engine(module, config, parameters=given)

    def test_policies_of_updates(self) -> None:
        program = "must be one of auto, serial, gated, in_backward, speculative"
        for value in ("nope", 5):
            for kind in KINDS:
                self.refused(program, kind, {"strata.update": value})
            with self.assertRaisesRegex(strata.Error, program):
                strata.torch.Engine(torch.nn.Linear(4, 4), CONFIG, overrides={"strata.update": value})
        for kind in KINDS:
            for value in ("in_backward", "speculative"):
                told = self.heard(kind, {"strata.update": value})
                honoured = (kind, value) == ("decoder", "speculative")
                self.assertEqual(len(told), 0 if honoured else 1, told)
                self.assertTrue(honoured or f"strata.update: {value} has no effect in an engine" in told[0])
        ids = torch.randint(3, 64, (2, 16), generator=torch.Generator().manual_seed(1))
        digests = []
        for value in ("serial", "speculative"):
            engine = self.made("decoder", {"strata.update": value, "strata.save": f"SCRATCH/{value}"})
            self.assertEqual(engine.settings["strata"].get("update", "auto"), value)
            for step in range(4):
                engine.backward(engine(input_ids=ids, labels=ids).loss)
                if step == 2:
                    engine.drop()
                    continue_from = engine.save(Path(self.scratch) / f"runs-{value}")
                    engine.saved(wait=True)
                    engine.load(continue_from)
                else:
                    engine.step()
            digests.append(engine._layers.digest())
        self.assertEqual(digests[0], digests[1])
