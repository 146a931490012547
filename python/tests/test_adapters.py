"""Adapters of experts as `strata train` writes them, read by PEFT: the same losses, or no file.

Skipped without transformers 5."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import warnings
from typing import Any

if any(importlib.util.find_spec(name) is None for name in ("torch", "transformers", "peft")):
    print("torch, transformers or peft is not installed")
    sys.exit(77)
if int(importlib.metadata.version("transformers").split(".")[0]) < 5:
    print("transformers is older than 5")
    sys.exit(77)

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import peft
import torch
import transformers

from .common import PROGRAM, ROOT, InScratch

MACHINE = str(ROOT / "tests" / "machines" / "two-cores.json")
TEXT = bytes(byte for byte in (ROOT / "docs" / "io.md").read_bytes() if byte < 128)[:4097]
SEVEN = ["q_proj", "gate_proj", "up_proj", "down_proj"]
STACKS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
SIZES: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 32,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
MODELS = {
    "qwen3": lambda: transformers.Qwen3MoeConfig(
        **SIZES, head_dim=16, num_experts=4, moe_intermediate_size=16, norm_topk_prob=True
    ),
    "dense": lambda: transformers.Qwen3MoeConfig(
        **SIZES, head_dim=16, num_experts=4, moe_intermediate_size=16, mlp_only_layers=[0]
    ),
    "qwen2": lambda: transformers.Qwen2MoeConfig(
        **SIZES, num_experts=4, moe_intermediate_size=16, shared_expert_intermediate_size=16
    ),
    "olmoe": lambda: transformers.OlmoeConfig(**SIZES, num_experts=4),
    "mixtral": lambda: transformers.MixtralConfig(**SIZES, num_local_experts=4),
}
READ: list[tuple[str, dict[str, Any]]] = [
    ("qwen3", {"target_modules": SEVEN}),
    ("qwen3", {"target_modules": SEVEN, "alpha_pattern": {"down_proj": 16, "q_proj": 3}, "rank_pattern": {"down_proj": 2}}),
    ("qwen3", {"target_modules": SEVEN, "layers_to_transform": [1]}),
    ("qwen3", {"target_modules": r".*\.(q_proj|gate_proj|up_proj|down_proj)"}),
    ("qwen3", {"target_modules": ["q_proj"], "target_parameters": STACKS, "use_rslora": True}),
    ("olmoe", {"target_modules": SEVEN}),
    ("olmoe", {"target_modules": ["down_proj"], "use_rslora": True}),
    ("olmoe", {"target_modules": "all-linear"}),
    ("mixtral", {"target_modules": ["w1", "w2", "w3"]}),
    ("mixtral", {"target_modules": ["q_proj"], "modules_to_save": ["gate"]}),
    ("qwen2", {"target_modules": ["shared_expert.down_proj"], "target_parameters": STACKS}),
    ("dense", {"target_modules": ["q_proj"], "target_parameters": STACKS[:1]}),
]
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("qwen3", {"target_modules": SEVEN, "use_rslora": True}),
    ("qwen3", {"target_modules": SEVEN, "alpha_pattern": {"up_proj": 16}}),
    ("qwen3", {"target_modules": SEVEN, "rank_pattern": {"up_proj": 8}}),
    ("qwen3", {"target_modules": SEVEN[:2]}),
    ("olmoe", {"target_modules": SEVEN[:3]}),
    ("mixtral", {"target_modules": r".*block_sparse_moe\.experts\.\d+\.w[123]"}),
    ("qwen2", {"target_modules": SEVEN}),
    ("dense", {"target_modules": "all-linear"}),
]


class Adapters(InScratch):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        transformers.utils.logging.disable_progress_bar()
        cls.addClassCleanup(transformers.utils.logging.enable_progress_bar)
        (cls.scratch / "text.txt").write_bytes(TEXT)
        subprocess.run([PROGRAM, "tokens", "text.txt", "--out", "text.bin"], cwd=cls.scratch, capture_output=True, check=True)
        for name, config in MODELS.items():
            torch.manual_seed(3)
            transformers.AutoModelForCausalLM.from_config(config()).save_pretrained(cls.scratch / name)

    def strata(self, command: str, model: str, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PROGRAM, command, "--model", model, "--data", "text.bin", "--seq-len", "64",
             "--json", "--config", "config.json", "--threads", "2", *words],
            cwd=self.scratch,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )  # fmt: skip

    def train(self, model: str, settings: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        config = {"optimizer": {"type": "AdamW", "params": {"lr": 5e-2}}, "bf16": {"enabled": False}}
        (self.scratch / "config.json").write_text(json.dumps(config))
        lora = json.dumps({"r": 4, "lora_alpha": 8, **settings})
        return self.strata(
            "train", model, "--set", f"strata.lora={lora}", "--micro-batch", "2", "--max-steps", "3", "--quiet",
            "--machine", MACHINE, "--out", "adapter", "--overwrite",
        )  # fmt: skip

    def loss(self, model: str) -> float:
        base = transformers.AutoModelForCausalLM.from_pretrained(
            self.scratch / model, dtype=torch.float32, experts_implementation="eager"
        )
        ids = torch.tensor(list(TEXT[:4096])).reshape(-1, 64)
        targets = torch.tensor(list(TEXT[1:4097])).reshape(-1)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of PEFT's own calls, and of layers without adapters
            logits = peft.PeftModel.from_pretrained(base, str(self.scratch / "adapter"))(input_ids=ids).logits
            return float(torch.nn.functional.cross_entropy(logits.reshape(-1, 256), targets))

    def test_what_is_written_is_the_same_in_peft(self) -> None:
        for model, settings in READ:
            with self.subTest(model=model, settings=settings):
                trained = self.train(model, settings)
                self.assertEqual(trained.returncode, 0, trained.stderr)
                evaluated = self.strata("eval", model, "--adapter", "adapter")
                self.assertEqual(evaluated.returncode, 0, evaluated.stderr)
                ours = json.loads(evaluated.stdout.splitlines()[-1])["loss"]
                self.assertAlmostEqual(ours, self.loss(model), delta=1e-6 * ours)

    def test_what_peft_reads_otherwise_is_refused(self) -> None:
        for model, settings in REFUSED:
            with self.subTest(model=model, settings=settings):
                trained = self.train(model, settings)
                self.assertEqual(trained.returncode, 2, trained.stderr)
                self.assertIn("PEFT beside transformers 5 would not read the adapter", trained.stderr)

    def test_a_file_that_peft_reads_otherwise_is_used_with_a_notice(self) -> None:
        self.assertEqual(self.train("olmoe", {"target_modules": SEVEN}).returncode, 0)
        file = self.scratch / "adapter" / "adapter_config.json"
        file.write_text(file.read_text().replace('"r":4', '"r":4,"use_rslora":true'))
        for command in (
            self.strata("eval", "olmoe", "--adapter", "adapter"),
            self.export("--merge", "--model", "olmoe", "--adapter", "adapter", "--out", "merged"),
        ):
            self.assertEqual(command.returncode, 0, command.stderr)
            self.assertIn("transformers 5 reads this adapter otherwise, or refuses it: it multiplies", command.stderr)

    def export(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PROGRAM, "export", *words], cwd=self.scratch, capture_output=True, text=True, timeout=60, check=False
        )
