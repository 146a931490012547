#!/usr/bin/env python3
"""Make tests/golden/adapters: an adapter of PEFT's for each family, and what PEFT makes of the weights when it merges it.

Never run by tests or CI; its output is committed.  Needs torch, transformers and peft:

    python3 tools/make_golden_merge.py

The models are those of tests/golden/families, whose weights are bf16 numbers.  Of each: adapter_config.json and
adapter_model.safetensors as save_pretrained() writes them, and merged.safetensors, what merge_and_unload(safe_merge=False) makes of
the adapted tensors and of modules_to_save, in the dtype of the file.
"""
import json
import os
import shutil
import warnings

import torch
from peft import LoraConfig, get_peft_model
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

FAMILIES, OUT = "tests/golden/families", "tests/golden/adapters"
SETTINGS = {
    "gemma2_caps": dict(target_modules="all-linear", use_rslora=True),
    "gemma3_local": dict(target_modules=["q_proj", "down_proj"], modules_to_save=["q_norm"]),
    "gpt2_exact": dict(target_modules="all-linear", modules_to_save=["ln_1", "lm_head"]),
    "llama_linear": dict(target_modules=["q_proj", "v_proj"], rank_pattern={"layers.1.*": 2}, alpha_pattern={"v_proj": 3}),
    "mistral_window": dict(target_modules=["k_proj", "up_proj"], layers_to_transform=[1]),
    "olmo2": dict(target_modules=r".*\.(o|gate)_proj", exclude_modules=r".*layers\.0\..*"),
    "phi3_long": dict(target_modules=["qkv_proj", "gate_up_proj"]),
    "qwen2_layers": dict(),
    "qwen3_bias": dict(target_modules=["q_proj", "o_proj", "down_proj"]),
    "smollm3_yarn": dict(target_modules=["v_proj", "gate_proj"], modules_to_save=["model.norm"]),
}


def stored_dtype(path):
    with safe_open(path, "pt") as f:
        return f.get_tensor(next(iter(f.keys()))).dtype


def main():
    warnings.simplefilter("ignore")
    for number, (name, settings) in enumerate(sorted(SETTINGS.items())):
        source, out = os.path.join(FAMILIES, name), os.path.join(OUT, name)
        shutil.rmtree(out, ignore_errors=True)
        torch.manual_seed(number)
        dtype = stored_dtype(os.path.join(source, "model.safetensors"))
        base = AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
        was = {k: v.clone() for k, v in base.state_dict().items()}
        model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=6, **settings))
        for key, p in model.named_parameters():
            if p.requires_grad:
                torch.nn.init.normal_(p, std=0.25)
        model.save_pretrained(out)
        os.remove(os.path.join(out, "README.md"))
        config = json.load(open(os.path.join(out, "adapter_config.json"), encoding="utf-8"))
        config["base_model_name_or_path"] = name
        with open(os.path.join(out, "adapter_config.json"), "w", encoding="utf-8") as f:
            json.dump(config, f, indent=2, sort_keys=True)
        merged = model.merge_and_unload(safe_merge=False).state_dict()
        save_file({k: v.contiguous().clone() for k, v in merged.items() if not torch.equal(v, was[k])},
                  os.path.join(out, "merged.safetensors"))


if __name__ == "__main__":
    main()
