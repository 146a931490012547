#!/usr/bin/env python3
"""Make tests/model/adapters_golden.json: which modules of each family PEFT gives adapters, with which rank and scale.

Never run by tests or CI; its output is committed.  Needs torch, transformers and peft:

    python3 tools/make_golden_adapters.py

The models are those of tests/golden/families.  "modules" are those with weights, in order, with their kind; a case has the keys of
a LoraConfig and, by module, what PEFT made of them: [rank, scale], or "saved"; or "error" where PEFT raised one.
"""
import json
import os
import warnings

import torch
from peft import LoraConfig, get_peft_model
from peft.utils import ModulesToSaveWrapper
from peft.tuners.lora import LoraLayer
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

FAMILIES = "tests/golden/families"
LLAMA = dict(first="q_proj", second="down_proj", block="layers", part="self_attn", norm="input_layernorm")
FUSED = dict(LLAMA, first="qkv_proj", second="gate_up_proj")
GPT2 = dict(first="c_attn", second="c_proj", block="h", part="mlp", norm="ln_1")
OLMO2 = dict(LLAMA, norm="post_attention_layernorm")


def cases(n):
    first, second, block, part, norm = n["first"], n["second"], n["block"], n["part"], n["norm"]
    both = [first, second]
    return [
        {},
        {"target_modules": both},
        {"target_modules": [f"{part}.{second}" if part == "mlp" else f"{part}.{first}"]},
        {"target_modules": [second[1:]]},
        {"target_modules": "all-linear"},
        {"target_modules": "ALL-linear", "r": 3, "lora_alpha": 5, "use_rslora": True},
        {"target_modules": f".*{first}"},
        {"target_modules": first},
        {"target_modules": rf".*\.{block}\.[01]\..*\.({first}|{second})$"},
        {"target_modules": rf"(?i).*\.{first.upper()}\Z|.*{second}(?=$)"},
        {"target_modules": rf"(?P<all>.*)\.(?:(?!{first})\w)*_.*" if n is not GPT2 else r".*c_[ap][^.]*"},
        {"target_modules": ".*"},
        {"target_modules": [norm]},
        {"target_modules": both, "layers_to_transform": 1},
        {"target_modules": both, "layers_to_transform": [0], "layers_pattern": block},
        {"target_modules": both, "layers_to_transform": [0, 1], "layers_pattern": ["none", block]},
        {"target_modules": both, "layers_to_transform": [1], "layers_pattern": [f"[{block}]+"]},
        {"target_modules": both, "layers_to_transform": []},
        {"target_modules": "all-linear", "layers_to_transform": [1]},
        {"target_modules": both, "layers_pattern": block},
        {"target_modules": both, "exclude_modules": [second]},
        {"target_modules": both, "exclude_modules": rf".*\.{block}\.0\..*"},
        {"target_modules": "all-linear", "exclude_modules": [first], "lora_alpha": 16},
        {"target_modules": both, "rank_pattern": {first: 2, f"{block}.1.*": 5}},
        {"target_modules": both, "rank_pattern": {rf"{block}\.1\..*": 5, first: 2}, "alpha_pattern": {second: 3}},
        {"target_modules": both, "r": 7, "lora_alpha": 9, "rank_pattern": {f"^.*{block}.0.*{first}": 4},
         "alpha_pattern": {f".*{first}": 1, ".*": 2}, "use_rslora": True},
        {"target_modules": both, "alpha_pattern": {f"{first}|{second}": 12}},
        {"target_modules": both, "modules_to_save": [norm]},
        {"target_modules": both, "modules_to_save": [norm[-5:] if n is not GPT2 else "_1"]},
        {"target_modules": both, "modules_to_save": [part]},
        {"target_modules": both, "modules_to_save": [second]},
        {"target_modules": both, "modules_to_save": [f"{block}.1"]},
        {"target_modules": both, "init_lora_weights": "gaussian", "lora_dropout": 0.1},
    ]


def module_kind(name, module, model):
    if module is model.get_output_embeddings():
        return "head"
    if isinstance(module, torch.nn.Embedding):
        return "embedding"
    return "linear" if isinstance(module, (torch.nn.Linear, Conv1D)) else "norm"


def weighted(model):
    return [(name, module) for name, module in model.named_modules()
            if any(True for _ in module.parameters(recurse=False))]


def resolve(config, settings):
    model = AutoModelForCausalLM.from_config(config)
    names = [name for name, _ in weighted(model)]
    try:
        peft = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **settings)).base_model.model
    except (ValueError, TypeError):
        return "error"
    found = {}
    for name, module in peft.named_modules():
        if isinstance(module, LoraLayer) and module.lora_A:
            found[name] = [module.r["default"], float(torch.tensor(module.scaling["default"]))]
        if isinstance(module, ModulesToSaveWrapper):
            found.update({inner: "saved" for inner in names if inner == name or inner.startswith(name + ".")})
    return found


def family(directory):
    config = AutoConfig.from_pretrained(os.path.join(FAMILIES, directory))
    model = AutoModelForCausalLM.from_config(config)
    names = {"gpt2": GPT2, "phi3": FUSED, "olmo2": OLMO2}.get(config.model_type, LLAMA)
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    shared = (model.get_output_embeddings(), model.get_input_embeddings())
    return {
        "family": config.model_type,
        "modules": [{"path": name, "kind": module_kind(name, module, model), "tied": tied and module in shared}
                    for name, module in weighted(model)],
        "cases": [{"settings": settings, "modules": resolve(config, settings)} for settings in cases(names)],
    }


def main():
    warnings.simplefilter("ignore")
    result = [family(name) for name in sorted(os.listdir(FAMILIES))]
    with open("tests/model/adapters_golden.json", "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(
            "{" + f'"family":{json.dumps(r["family"])},"modules":[\n' + ",\n".join(json.dumps(m) for m in r["modules"]) +
            '],"cases":[\n' + ",\n".join(json.dumps(c, separators=(",", ":")) for c in r["cases"]) + "]}" for r in result) + "]\n")


if __name__ == "__main__":
    main()
