#!/usr/bin/env python3
"""Make tests/golden/adapters: an adapter of PEFT's for each family, what PEFT computes with it and how it trains it, and what it
makes of the weights when it merges it.

Never run by tests or CI; its output is committed.  Needs torch, transformers and peft:

    python3 tools/make_golden_merge.py [NAME...]

The models are those of tests/golden/families, and of tests/golden/experts with eager experts, whose weights are bf16 numbers; the
adapters' values are drawn until all choices of experts are clear.  Of each: adapter_config.json and
adapter_model.safetensors as save_pretrained() writes them, and merged.safetensors, what merge_and_unload(safe_merge=False) makes of
the adapted tensors and of modules_to_save, in the dtype of the file; golden.json: the mean loss over tokens.bin in fp32, and losses
and gradient norms of 20 AdamW steps that go on from the adapter, as tools/make_golden_families.py counts them.
"""
import json
import os
import shutil
import sys
import warnings

import numpy
import make_golden_families as families
import torch
from make_golden import ACCUMULATION, BETAS, CLIP, CONTEXT, DECAY, EPS, LR, MICRO_BATCH, STEPS, micro_batch, write_json
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

GOLDEN, OUT = "tests/golden", "tests/golden/adapters"
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
families.MARGIN = 2e-5  # between choices of experts: sums in another order are 1e-6 away
# Of models with experts: the model, and the settings.
EXPERTS = {
    "gpt_oss": ("gpt_oss", dict(target_modules=["q_proj", "k_proj", "v_proj", "o_proj"], modules_to_save=["input_layernorm"])),
    "mixtral": ("mixtral", dict(target_modules=["q_proj", "v_proj"])),
    "olmoe": ("olmoe", dict(target_modules=["q_proj", "k_proj", "v_proj", "o_proj"], use_rslora=True)),
    "qwen2_moe": ("qwen2_moe", dict(target_modules=["k_proj", "o_proj", "shared_expert_gate"])),
    "qwen3_moe": ("qwen3_moe", dict(target_modules=["q_proj", "o_proj"], modules_to_save=["q_norm"], rank_pattern={"layers.2.*": 2})),
    "qwen3_moe_params": ("qwen3_moe_one", dict(target_modules=["q_proj"], target_parameters=["mlp.experts.gate_up_proj", "experts.down_proj"],
                                               rank_pattern={"experts.down_proj": 2}, alpha_pattern={r".*\.0\.mlp.experts.gate_up_proj": 3})),
    "qwen2_moe_params": ("qwen2_moe", dict(target_parameters=["experts.gate_up_proj"], use_rslora=True)),
    # The first layer's choices are not all clear without adapters of attention.
    "olmoe_params": ("olmoe", dict(target_modules=["q_proj", "v_proj"], target_parameters=["experts.gate_up_proj", "experts.down_proj"])),
    # Of gpt_oss, whose limit is low, hardly any seed has no value near it.
    "gpt_oss_params": ("gpt_oss_one", dict(target_modules=["v_proj", "o_proj"], rank_pattern={"experts.gate_up_proj": 3},
                                       target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])),
    "mixtral_params": ("mixtral", dict(target_modules=["o_proj"], target_parameters=["experts.down_proj"])),
}


def stored_dtype(path):
    with safe_open(path, "pt") as f:
        return f.get_tensor(next(iter(f.keys()))).dtype


def mean_loss(model, ids, targets):
    logits = model(input_ids=ids, use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]).float(), targets.reshape(-1))


def open_adapter(source, out):
    base = families.build(source, torch.float32)
    return PeftModel.from_pretrained(base, out, is_trainable=True)


def evaluate(source, out, tokens):
    model = open_adapter(source, out)
    windows = (len(tokens) - 1) // CONTEXT
    with torch.no_grad():
        losses = [float(mean_loss(model, *micro_batch(tokens, at))) for at in range(0, windows, MICRO_BATCH)]
    assert windows % MICRO_BATCH == 0
    return sum(losses) / len(losses)


def train(source, out, tokens):
    model = open_adapter(source, out)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW([{"params": [p for p in parameters if p.dim() == 2], "weight_decay": DECAY},
                                   {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0}],
                                  lr=LR, betas=BETAS, eps=EPS)
    losses, norms, position = [], [], 0
    for _ in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(ACCUMULATION):
            loss = mean_loss(model, *micro_batch(tokens, position))
            (loss / ACCUMULATION).backward()
            total += loss.item() / ACCUMULATION
            position += MICRO_BATCH
        norms.append(float(torch.nn.utils.clip_grad_norm_(parameters, CLIP)))
        losses.append(total)
        optimizer.step()
    return {"losses": losses, "grad_norms": norms}


def make(name, source, settings, seed):
    out = os.path.join(OUT, name)
    shutil.rmtree(out, ignore_errors=True)
    torch.manual_seed(seed)
    dtype = stored_dtype(os.path.join(source, "model.safetensors"))
    # PEFT rounds what it adds to a stack before it adds it: here only the sum is rounded.
    base = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32 if "target_parameters" in settings else dtype)
    was = {k: v.clone() for k, v in base.state_dict().items()}
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=6, **settings))
    for key, p in model.named_parameters():
        if p.requires_grad:
            torch.nn.init.normal_(p, std=0.1)
    model.save_pretrained(out)
    os.remove(os.path.join(out, "README.md"))
    config = json.load(open(os.path.join(out, "adapter_config.json"), encoding="utf-8"))
    config["base_model_name_or_path"] = os.path.basename(source)
    with open(os.path.join(out, "adapter_config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=2, sort_keys=True)
    merged = model.merge_and_unload(safe_merge=False).state_dict()
    changed = {k: v for k, v in merged.items() if not torch.equal(v, was[k])}
    families.TYPE = os.path.basename(source)
    if families.TYPE not in families.STACKED:
        changed = {name: own for k, v in changed.items() for name, own in families.per_expert(k, v).items()}
    save_file({k: v.to(dtype).contiguous().clone() for k, v in changed.items()}, os.path.join(out, "merged.safetensors"))
    tokens = numpy.fromfile(os.path.join(source, "tokens.bin"), dtype="<u2", offset=1024)
    write_json(os.path.join(out, "golden.json"),
               {"loss": evaluate(source, out, tokens), "in_order": train(source, out, tokens)})


def make_clear(name, source, settings):
    """Until all choices of experts are clear."""
    for seed in range(100, 500):
        families.NEAREST[0] = float("inf")
        try:
            make(name, source, settings, seed)
        except SystemExit:
            continue
        print(f"{name}: seed {seed}, choices {families.NEAREST[0]:.2e}")
        return
    raise SystemExit(name + ": no adapter with clear choices")


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    names = sys.argv[1:] or [*SETTINGS, *EXPERTS]
    for number, (name, settings) in enumerate(sorted(SETTINGS.items())):
        if name in names:
            make(name, os.path.join(GOLDEN, "families", name), settings, number)
    for name, (model, settings) in EXPERTS.items():
        if name in names:
            make_clear(name, os.path.join(GOLDEN, "experts", model), settings)


if __name__ == "__main__":
    main()
