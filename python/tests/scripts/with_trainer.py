"""A run of transformers' Trainer with a DeepSpeed configuration, then one that resumes it half-way."""

import copy
import json
import sys
from pathlib import Path

import torch
import transformers
import transformers.training_args

# Trainer asks for a GPU that has bf16, or for use_cpu, which turns DeepSpeed off.
transformers.training_args.is_torch_bf16_gpu_available = lambda: True

CONFIG = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "zero_allow_untested_optimizer": True,
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto", "loss_scale": 0, "initial_scale_power": 16},
    "zero_optimization": {
        "stage": 2,
        "overlap_comm": False,
        "contiguous_gradients": True,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_gather_16bit_weights_on_model_save": True,
    },
}
OPTIMIZER = {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}}
SCHEDULER = {
    "type": "WarmupDecayLR",
    "params": {"warmup_max_lr": "auto", "warmup_num_steps": "auto", "total_num_steps": "auto", "warmup_type": "linear"},
}


def rows(count, seed):
    made = torch.Generator().manual_seed(seed)
    return [{"input_ids": row, "labels": row} for row in torch.randint(0, 96, (count, 32), generator=made)]


def trainer(out, what):
    config = copy.deepcopy(CONFIG)
    config["zero_optimization"]["stage"] = 3 if "stage3" in what else 2
    if "theirs" in what:  # optimizer and scheduler of the configuration
        config.update(optimizer=copy.deepcopy(OPTIMIZER), scheduler=copy.deepcopy(SCHEDULER))
    if "offload" in what:
        config["zero_optimization"]["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    arguments = transformers.TrainingArguments(
        output_dir=str(out),
        per_device_train_batch_size=2,
        per_device_eval_batch_size=4,
        gradient_accumulation_steps=2,
        max_steps=20,
        logging_steps=1,
        save_steps=10,
        eval_strategy="steps",
        eval_steps=10,
        learning_rate=1e-3,
        warmup_steps=4,
        weight_decay=0.01,
        bf16="bf16" in what,
        deepspeed=config,
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


def main(log, out, *what):
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    whole = trainer(Path(out) / "whole", what)
    whole.train()
    history = whole.state.log_history
    told = {key: [line[key] for line in history if key in line] for key in ("loss", "grad_norm", "learning_rate", "eval_loss")}
    whole.save_model(str(Path(out) / "final"))
    if "stage3" in what:  # within zero.Init, by GatheredParameters
        again = type(whole.model).from_pretrained(str(Path(out) / "final"), dtype=torch.float32)
        told["reloaded"] = all(torch.equal(one, other) for one, other in zip(again.parameters(), whole.model.parameters()))
    if "resume" in what:
        rest = trainer(Path(out) / "rest", what)
        rest.train(resume_from_checkpoint=str(Path(out) / "whole" / "checkpoint-10"))
        told["rest"] = [line["loss"] for line in rest.state.log_history if "loss" in line]
        there = weights(whole)
        told["same"] = all(torch.equal(value, there[name]) for name, value in weights(rest).items())
    if "again" in what:
        whole.train()
        told["again"] = [line["loss"] for line in whole.state.log_history if "loss" in line]
    Path(f"{log}.{torch.distributed.get_rank()}").write_text(json.dumps(told))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
