"""Scripts that TRL and Accelerate install with themselves, unchanged, over strata.deepspeed: beside the same script without it,
or by what the script itself asserts.  Skipped without torch, transformers, accelerate and trl; Accelerate's need evaluate."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any

if any(importlib.util.find_spec(name) is None for name in ("torch", "transformers", "accelerate", "trl")):
    print("torch, transformers, accelerate or trl is not installed")
    sys.exit(77)

import tokenizers
import torch
import transformers

from .common import InScratch

OURS = [sys.executable, "-m", "strata.deepspeed"]
LAUNCH = [*OURS, "-m", "accelerate.commands.launch", "--config_file"]
CHAT = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}<|end|>{% endfor %}"
METRIC = """
import datasets
import evaluate


class Glue(evaluate.Metric):
    def _info(self):
        number = datasets.Value("int64")
        features = datasets.Features({"predictions": number, "references": number})
        return evaluate.MetricInfo(description="", citation="", features=features)

    def _compute(self, predictions, references):
        return {"accuracy": sum(p == r for p, r in zip(predictions, references)) / len(references)}
"""


def script(package: str, *path: str) -> Path:
    found = importlib.util.find_spec(package)
    assert found is not None and found.origin is not None
    return Path(found.origin).parent.joinpath(*path)


def write_rows(directory: Path, **splits: list[dict[str, Any]]) -> None:
    directory.mkdir(parents=True)
    for split, rows in splits.items():
        (directory / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


class Installed(InScratch):
    """Each in a process of its own, with a tiny model and data of its own format in the scratch directory."""

    words: list[str]

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.words = [word for word in cls.book.read_text().split() if word.isalpha()]

    def text(self, made: random.Random) -> str:
        return " ".join(made.choices(self.words, k=6))

    def tokenizer(self, *special: str, **members: Any) -> Any:
        """Of bytes."""
        alphabet = [*special, *sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())]
        made = tokenizers.Tokenizer(tokenizers.models.BPE({text: n for n, text in enumerate(alphabet)}, []))
        made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = tokenizers.decoders.ByteLevel()
        return transformers.PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=128, **members)

    def run_script(self, *words: Any) -> str:
        own = {"HF_HOME": str(self.scratch / "cache"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **own}
        done = subprocess.run(
            [*map(str, words)], cwd=self.scratch, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-4000:])
        return done.stdout

    def launcher(self, stage: int, port: int, **members: Any) -> list[Any]:
        """`accelerate launch` with a file as its users have it."""
        file = self.scratch / f"stage{stage}.yaml"
        given = {"zero_stage": stage, "gradient_accumulation_steps": 1, "gradient_clipping": 1.0, **members}
        lines = [f"  {key}: {str(value).lower()}\n" for key, value in given.items()]
        file.write_text(
            "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nnum_processes: 1\nnum_machines: 1\n"
            f"machine_rank: 0\nmixed_precision: 'no'\nuse_cpu: false\nmain_process_port: {port}\n"
            "deepspeed_config:\n" + "".join(lines)
        )
        return [*LAUNCH, file, "--module", "strata.deepspeed"]


class OfTrl(Installed):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        one = cls()
        tokenizer = one.tokenizer("<|end|>", eos_token="<|end|>", pad_token="<|end|>")
        tokenizer.chat_template = CHAT
        torch.manual_seed(1)
        sizes = {"vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "eos_token_id": 0, "pad_token_id": 0}
        transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**sizes, **heads)).save_pretrained(cls.scratch / "model")
        tokenizer.save_pretrained(cls.scratch / "model")
        made = random.Random(2)
        talks = [[{"role": role, "content": one.text(made)} for role in ("user", "assistant")] for _ in range(16)]
        write_rows(cls.scratch / "talks", train=[{"messages": talk} for talk in talks])
        pairs = [{"prompt": one.text(made), "chosen": one.text(made), "rejected": one.text(made)} for _ in range(16)]
        write_rows(cls.scratch / "pairs", train=pairs)

    def losses(self, start: list[Any], name: str, data: str, out: str, *more: Any) -> list[float]:
        told = self.run_script(
            *(*start, script("trl", "scripts", f"{name}.py"), "--model_name_or_path", "model", "--dataset_name", data),
            *("--output_dir", out, "--max_steps", 3, "--logging_steps", 1, "--save_steps", 3, "--learning_rate", 1e-3),
            *("--per_device_train_batch_size", 2, "--max_length", 64, "--bf16", False, "--gradient_checkpointing", False),
            *("--report_to", "none", "--dataloader_pin_memory", False, "--disable_tqdm", True, *more),
        )
        self.assertIn("Training completed", told)
        made = transformers.AutoModelForCausalLM.from_pretrained(self.scratch / out)
        self.assertTrue(all(bool(torch.isfinite(p).all()) for p in made.parameters()))
        state = json.loads((self.scratch / out / "checkpoint-3" / "trainer_state.json").read_text())
        return [line["loss"] for line in state["log_history"] if "loss" in line]

    def assert_near(self, ours: list[float], theirs: list[float]) -> None:
        self.assertEqual((len(ours), len(theirs)), (3, 3))
        for one, other in zip(ours, theirs):
            self.assertAlmostEqual(one, other, delta=2e-4)  # as they are rounded

    def test_sft_with_layers_that_page(self) -> None:
        offload = {"offload_param_device": "cpu", "offload_optimizer_device": "cpu", "zero3_init_flag": True}
        start = self.launcher(3, 29541, **offload)
        theirs = self.losses([sys.executable], "sft", "talks", "plain", "--use_cpu", True)
        self.assert_near(self.losses(start, "sft", "talks", "launched"), theirs)

    def test_dpo_by_a_configuration_of_its_own(self) -> None:
        file = self.scratch / "zero2.json"
        names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
        file.write_text(json.dumps({**dict.fromkeys(names, "auto"), "zero_optimization": {"stage": 2}}))
        ours = self.losses(OURS, "dpo", "pairs", "preferred", "--deepspeed", file)
        self.assertAlmostEqual(ours[0], 0.6931, delta=1e-3)  # as long as the model is its own reference
        self.assertNotAlmostEqual(ours[-1], 0.6931, delta=1e-3)


@unittest.skipUnless(importlib.util.find_spec("evaluate"), "evaluate is not installed")
class OfAccelerate(Installed):
    """Its script asserts what it is for."""

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        one = cls()
        tokenizer = one.tokenizer("[PAD]", "[CLS]", "[SEP]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]")
        torch.manual_seed(1)
        sizes = {"vocab_size": len(tokenizer), "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
        config = transformers.BertConfig(**sizes, num_attention_heads=2, max_position_embeddings=128)
        transformers.BertForSequenceClassification(config).save_pretrained(cls.scratch / "model")
        tokenizer.save_pretrained(cls.scratch / "model")
        made = random.Random(3)
        rows = [{"sentence1": one.text(made), "sentence2": one.text(made), "label": n % 2, "idx": n} for n in range(24)]
        place = cls.scratch / "nyu-mll" / "glue"  # as the hub has it
        write_rows(place, train=rows[:16], validation=rows[16:])
        splits = "".join(f"  - split: {split}\n    path: {split}.jsonl\n" for split in ("train", "validation"))
        (place / "README.md").write_text(f"---\nconfigs:\n- config_name: mrpc\n  data_files:\n{splits}---\n")
        (cls.scratch / "glue").mkdir()
        (cls.scratch / "glue" / "glue.py").write_text(METRIC)

    def test_a_resumed_run_has_its_accuracy_and_rates(self) -> None:
        out = self.scratch / "out"
        out.mkdir()
        name = script("accelerate", "test_utils", "scripts", "external_deps", "test_checkpointing.py")
        words = [*self.launcher(2, 29543), name, "--model_name_or_path", "model", "--output_dir", out]
        self.run_script(*words, "--partial_train_epoch", 1)
        self.assertIn("resumed checkpoint performance", self.run_script(*words, "--resume_from_checkpoint", out / "epoch_0"))


if __name__ == "__main__":
    unittest.main()
