"""Runs of transformers' Trainer with DeepSpeed configurations, each followed by one that resumes it half-way.

with_trainer.py LOG OUT KIND[+WORD...] ...      all of them in one process, or by a launcher in several
"""

import copy
import hashlib
import json
import os
import sys
from pathlib import Path

import accelerate
import torch
import transformers
import transformers.training_args

# Trainer asks for a GPU that has bf16, or for use_cpu, which turns DeepSpeed off.
transformers.training_args.is_torch_bf16_gpu_available = lambda: True

CONFIG = json.loads(Path(__file__).with_suffix(".json").read_text())
OPTIMIZER = {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}}
SCHEDULER = {
    "type": "WarmupDecayLR",
    "params": {"warmup_max_lr": "auto", "warmup_num_steps": "auto", "total_num_steps": "auto", "warmup_type": "linear"},
}


RANKS = int(os.environ.get("WORLD_SIZE", "1"))
LAUNCHED = "ACCELERATE_USE_DEEPSPEED" in os.environ  # by Accelerate's launcher, whose file names the configuration


def rows(count, seed):
    made = torch.Generator().manual_seed(seed)
    return [{"input_ids": row, "labels": row} for row in torch.randint(0, 96, (count, 32), generator=made)]


def trainer(out, what):
    named = RANKS > 1 and not LAUNCHED
    if named:  # on CPUs Accelerate chooses no backend for several ranks
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)  # of an earlier Trainer here
        os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
        accelerate.PartialState(backend="gloo")
    config = copy.deepcopy(CONFIG)
    config["zero_optimization"]["stage"] = 3 if "stage3" in what else 2
    if "theirs" in what:  # optimizer and scheduler of the configuration
        config.update(optimizer=copy.deepcopy(OPTIMIZER), scheduler=copy.deepcopy(SCHEDULER))
    if "leaves" in what:  # as many sums of gradients as two ranks have
        config["strata"] = {"leaves": 2}
    if "computed" in what:
        config["strata"] = {"compute": "strata", "seq_len": 32}
    if "offload" in what:
        config["zero_optimization"]["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    arguments = transformers.TrainingArguments(
        output_dir=str(out),
        per_device_train_batch_size=2,
        per_device_eval_batch_size=4,
        gradient_accumulation_steps=2 // RANKS,
        max_steps=20,
        logging_steps=1,
        save_steps=10,
        eval_strategy="steps",
        eval_steps=10,
        learning_rate=1e-3,
        warmup_steps=4,
        weight_decay=0.01,
        bf16="bf16" in what,
        deepspeed=None if LAUNCHED else config,
        ddp_backend="gloo" if LAUNCHED else None,
        accelerator_config={"use_configured_state": named},
        dataloader_pin_memory=False,
        disable_tqdm=True,
        report_to=[],
    )
    shape = transformers.Qwen2Config(
        vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1
    )
    torch.manual_seed(3)
    model = transformers.Qwen2ForCausalLM(shape)
    if "peft" in what:
        import peft

        lora = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0, task_type="CAUSAL_LM")
        model = peft.get_peft_model(model, lora)
    return transformers.Trainer(model, arguments, train_dataset=rows(96, 4), eval_dataset=rows(8, 5))


def weights(one):
    return {name: value.detach().clone() for name, value in one.model.named_parameters() if value.requires_grad}


def digest(one):
    known = hashlib.sha256()
    for value in weights(one).values():
        known.update(value.contiguous().view(torch.uint8).numpy().tobytes())
    return known.hexdigest()


def run(out, what):
    whole = trainer(out / "whole", what)
    whole.train()
    history = whole.state.log_history
    told = {key: [line[key] for line in history if key in line] for key in ("loss", "grad_norm", "learning_rate", "eval_loss")}
    told["digest"] = digest(whole)
    whole.save_model(str(out / "final"))
    if "stage3" in what:  # within zero.Init, by GatheredParameters
        again = type(whole.model).from_pretrained(str(out / "final"), dtype=torch.float32)
        told["reloaded"] = all(torch.equal(one, other) for one, other in zip(again.parameters(), whole.model.parameters()))
    if "resume" in what:
        rest = trainer(out / "rest", what)
        rest.train(resume_from_checkpoint=str(out / "whole" / "checkpoint-10"))
        told["rest"] = [line["loss"] for line in rest.state.log_history if "loss" in line]
        told["rest_digest"] = digest(rest)
    if "again" in what:
        whole.train()
        told["again"] = [line["loss"] for line in whole.state.log_history if "loss" in line]
    return told


def main(log, out, *kinds):
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    told = {kind: run(Path(out) / kind, kind.split("+")) for kind in kinds}
    Path(f"{log}.{torch.distributed.get_rank()}").write_text(json.dumps(told))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
