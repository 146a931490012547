"""strata.optim under transformers' Trainer and Accelerate, beside torch.optim.AdamW.  Skipped without them."""

from __future__ import annotations

import importlib.util
import os
import sys
import unittest
import warnings
from typing import Any

if any(importlib.util.find_spec(name) is None for name in ("torch", "transformers", "accelerate", "peft")):
    print("torch, transformers, accelerate or peft is not installed")
    sys.exit(77)

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", WANDB_DISABLED="true")

import accelerate
import peft
import torch
import transformers

from strata import optim

from .common import InScratch


def model(**changes: Any) -> Any:
    torch.manual_seed(3)
    config = transformers.GPT2Config(
        vocab_size=96, n_positions=32, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, **changes
    )
    return transformers.GPT2LMHeadModel(config)


def rows(count: int) -> list[dict[str, torch.Tensor]]:
    made = torch.Generator().manual_seed(4)
    ids = torch.randint(0, 96, (count, 32), generator=made)
    return [{"input_ids": row, "labels": row} for row in ids]


class Trainers(InScratch):
    def trained(self, kind: type, name: str, trainee: Any, resume: str | None = None, **settings: Any) -> Any:
        arguments = transformers.TrainingArguments(
            output_dir=str(self.scratch / name),
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            max_steps=6,
            logging_steps=1,
            save_steps=3,
            warmup_steps=2,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            **settings,
        )
        weights = [parameter for parameter in trainee.parameters() if parameter.requires_grad]
        optimizer = kind(weights, lr=1e-2, weight_decay=0.01)
        trainer = transformers.Trainer(trainee, arguments, train_dataset=rows(64), optimizers=(optimizer, None))
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    @staticmethod
    def losses(trainer: Any) -> list[float]:
        return [line["loss"] for line in trainer.state.log_history if "loss" in line]

    def test_trainer_learns_the_same(self) -> None:
        for settings in ({}, {"bf16": True}):
            with self.subTest(**settings):
                theirs = self.losses(self.trained(torch.optim.AdamW, "theirs", model(), **settings))
                ours = self.losses(self.trained(optim.AdamW, "ours", model(), **settings))
                self.assertEqual(len(ours), 6)
                for one, other in zip(ours, theirs, strict=True):
                    self.assertAlmostEqual(one, other, delta=2e-3 if settings else 1e-4)

    def test_trainer_goes_on_with_the_same_bits(self) -> None:
        whole = self.trained(optim.AdamW, "whole", model())
        rest = self.trained(optim.AdamW, "rest", model(), resume=str(self.scratch / "whole" / "checkpoint-3"))
        self.assertEqual(rest.state.global_step, 6)
        pairs = zip(whole.model.parameters(), rest.model.parameters(), strict=True)
        self.assertTrue(all(torch.equal(a, b) for a, b in pairs))

    def test_peft(self) -> None:
        config = peft.LoraConfig(r=4, target_modules=["c_attn"], task_type="CAUSAL_LM", fan_in_fan_out=True)

        def run(kind: type, name: str) -> list[float]:
            with warnings.catch_warnings():  # PEFT asks transformers 5.24 for what that deprecates
                warnings.simplefilter("ignore", FutureWarning)
                trainee = peft.get_peft_model(model(), config)
            return self.losses(self.trained(kind, name, trainee))

        torch.manual_seed(3)
        for one, other in zip(run(optim.AdamW, "lora"), run(torch.optim.AdamW, "lora-theirs"), strict=True):
            self.assertAlmostEqual(one, other, delta=1e-3)

    def test_accelerate(self) -> None:
        def run(kind: type) -> list[float]:
            accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
            trainee = model()
            optimizer = kind(trainee.parameters(), lr=1e-2)
            scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=4)
            loader = torch.utils.data.DataLoader(rows(24), batch_size=2)
            trainee, optimizer, loader, scheduler = accelerator.prepare(trainee, optimizer, loader, scheduler)
            losses = []
            for batch in loader:
                with accelerator.accumulate(trainee):
                    loss = trainee(**batch).loss
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(trainee.parameters(), 1.0)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                losses.append(loss.item())
            accelerator.save_state(str(self.scratch / kind.__module__))
            accelerator.load_state(str(self.scratch / kind.__module__))
            return losses

        for one, other in zip(run(optim.AdamW), run(torch.optim.AdamW), strict=True):
            self.assertAlmostEqual(one / other, 1, delta=1e-4)


if __name__ == "__main__":
    unittest.main()
