#!/usr/bin/env python3
"""Writes tests/golden/deepspeed_lora: a run of DeepSpeed that trains adapters, in its own files and as `strata import` reads it.

Never run by tests or CI; its output is committed.

    python3 -m venv /tmp/ds && /tmp/ds/bin/pip install torch transformers peft deepspeed
    DS_ACCELERATOR=cpu /tmp/ds/bin/python tools/make_golden_deepspeed.py

Three steps of ZeRO stage 2 in fp32 on a Llama of one block, LoRA on q_proj, lm_head in modules_to_save; then DeepSpeed's own
ds_to_universal.py and tools/import_deepspeed.py.  base/ is the model, adapter/ what PEFT saved, universal/ DeepSpeed's files but those of
frozen parameters, which nobody reads, parts/ what the script made of them.  Written by DeepSpeed 0.19.8, PEFT 0.21.2, torch 2.15.
"""
import glob
import os
import shutil
import subprocess
import sys
import tempfile

os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29777", DS_ACCELERATOR="cpu")
import deepspeed
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OUT = os.path.join(ROOT, "tests", "golden", "deepspeed_lora")
CONFIG = {"train_batch_size": 2, "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}, "gradient_clipping": 1.0,
          "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1, "torch_adam": True}}}


def train(run):
    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
                                         num_key_value_heads=1, max_position_embeddings=64, tie_word_embeddings=False))
    model.save_pretrained(os.path.join(OUT, "base"))
    adapted = get_peft_model(model, LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj"], modules_to_save=["lm_head"], task_type="CAUSAL_LM"))
    engine, *_ = deepspeed.initialize(model=adapted, config=CONFIG, model_parameters=[p for p in adapted.parameters() if p.requires_grad])
    for _ in range(3):
        ids = torch.randint(0, 32, (2, 16))
        engine.backward(engine(input_ids=ids, labels=ids).loss)
        engine.step()
    engine.save_checkpoint(run, tag="global_step3")
    adapted.save_pretrained(os.path.join(OUT, "adapter"))


def main():
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # one process needs no shared memory, nor a compiler
    shutil.rmtree(OUT, ignore_errors=True)
    os.makedirs(OUT)
    universal = os.path.join(OUT, "universal")
    with tempfile.TemporaryDirectory() as run:
        train(run)
        subprocess.check_call([sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder", os.path.join(run, "global_step3"),
                               "--output_folder", universal, "--inject_missing_state"])
    for place in glob.glob(os.path.join(universal, "zero", "*", "")):
        if not os.path.exists(os.path.join(place, "exp_avg.pt")):
            shutil.rmtree(place)
    os.remove(os.path.join(OUT, "adapter", "README.md"))
    os.remove(os.path.join(OUT, "latest_universal"))
    subprocess.check_call([sys.executable, os.path.join(ROOT, "tools", "import_deepspeed.py"), universal, os.path.join(OUT, "parts"), "--adapter",
                           os.path.join(OUT, "adapter")])


if __name__ == "__main__":
    main()
