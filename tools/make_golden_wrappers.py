#!/usr/bin/env python3
"""Make tests/golden/wrappers and tests/golden/rope, and check what strata writes of the former.

Never run by tests or CI; its output is committed.  Needs torch, transformers 5 and peft:

    python3 tools/make_golden_wrappers.py make [NAME...]
    python3 tools/make_golden_wrappers.py check STRATA [NAME...]

wrappers/NAME: a tiny model of more than text (st_wrapper in model/family.c), as transformers saves it, with weights that are bf16
numbers; golden.json: the loss of tests/golden/families/llama_linear/tokens.bin in windows of 32, text alone, in fp32, and, for one of
them, that with the adapter beside it.  rope/NAME.json: a config.json for the weights of tests/golden/families/qwen2_layers, and in
rope/golden.json the losses of windows beyond its max_position_embeddings.
check: a run whose rate is 0 writes every tensor as it was, and transformers loads it; so does an export of its checkpoint; an adapter
that strata trains has the loss in PEFT that strata evaluates.
"""
import json
import os
import re
import subprocess
import sys
import tempfile

import numpy
import torch
from make_golden import SEED, write_json
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

TOKENS = "tests/golden/families/llama_linear/tokens.bin"
FAMILY = "tests/golden/families/qwen2_layers"
VOCAB, CONTEXT = 96, 32
TEXT = dict(vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
            max_position_embeddings=64, pad_token_id=None, bos_token_id=1, eos_token_id=2)
SIGLIP = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4)
CLIP = dict(SIGLIP, model_type="clip_vision_model", projection_dim=16)
PIXTRAL = dict(SIGLIP, model_type="pixtral", head_dim=8)
VISUAL = dict(depth=1, hidden_size=16, num_heads=2, patch_size=4)
QWEN = dict(image_token_id=95, video_token_id=94, vision_start_token_id=93, vision_end_token_id=92)
MROPE = dict(type="mrope", mrope_section=[1, 1, 2])
WRAPPERS = {
    "gemma3": dict(text_config=dict(TEXT, head_dim=8, sliding_window=8, query_pre_attn_scalar=8), vision_config=SIGLIP,
                   mm_tokens_per_image=4, image_token_index=95, boi_token_index=94, eoi_token_index=93),
    "llava": dict(text_config=dict(TEXT, model_type="llama"), vision_config=CLIP, image_token_index=95),
    "llava_next": dict(text_config=dict(TEXT, model_type="mistral"), vision_config=CLIP, image_token_index=95),
    "llava_next_video": dict(text_config=dict(TEXT, model_type="llama"), vision_config=CLIP, image_token_index=95, video_token_index=94),
    "vipllava": dict(text_config=dict(TEXT, model_type="llama"), vision_config=CLIP, image_token_index=95, vision_feature_layers=[-1]),
    "got_ocr2": dict(text_config=dict(TEXT, model_type="qwen2"), image_token_id=95, vision_config=dict(
        hidden_size=16, output_channels=16, num_hidden_layers=1, num_attention_heads=2, image_size=32, patch_size=16, mlp_dim=24,
        window_size=2, global_attn_indexes=[0])),
    "llava_onevision": dict(text_config=dict(TEXT, model_type="qwen2"), image_token_index=95,
                            vision_config=dict(SIGLIP, model_type="siglip_vision_model")),
    "mistral3": dict(text_config=dict(TEXT, model_type="mistral", head_dim=8), vision_config=PIXTRAL, image_token_index=95),
    "internvl": dict(text_config=dict(TEXT, model_type="qwen2"), vision_config=SIGLIP, image_token_id=95),
    "idefics3": dict(text_config=dict(TEXT, model_type="llama"), vision_config=SIGLIP, image_token_id=95, scale_factor=2),
    "smolvlm": dict(text_config=dict(TEXT, model_type="llama"), vision_config=SIGLIP, image_token_id=95, scale_factor=2),
    "qwen2_vl": dict(QWEN, text_config=dict(TEXT, rope_scaling=MROPE), vision_config=dict(VISUAL, embed_dim=16)),
    "qwen2_5_vl": dict(QWEN, text_config=dict(TEXT, rope_scaling=MROPE, tie_word_embeddings=True), tie_word_embeddings=True,
                       vision_config=dict(VISUAL, intermediate_size=24, out_hidden_size=16, fullatt_block_indexes=[0])),
    "qwen3_vl": dict(QWEN, text_config=dict(TEXT, head_dim=8, rope_scaling=dict(rope_type="default", mrope_interleaved=True, mrope_section=[2, 1, 1])),
                     vision_config=dict(VISUAL, intermediate_size=24, out_hidden_size=16, num_position_embeddings=16,
                                        deepstack_visual_indexes=[0])),
}
ADAPTED = "gemma3"
TARGETS = r".*language_model.*\.(q_proj|down_proj)"
BEYOND = 400
ROPES = {
    "yarn": (BEYOND, dict(rope_theta=10000.0, rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=128))),
    "yarn5": (BEYOND, dict(rope_parameters=dict(rope_theta=10000.0, rope_type="yarn", factor=4.0, original_max_position_embeddings=128))),
    "linear": (BEYOND, dict(rope_theta=10000.0, rope_scaling=dict(type="linear", factor=4.0))),
    "dynamic": (128, dict(rope_theta=10000.0, rope_scaling=dict(type="dynamic", factor=2.0))),
}


def read_tokens():
    return numpy.fromfile(TOKENS, dtype="<u2", offset=1024).astype(numpy.int64)


def make_weights(model):
    """Larger than a model's own, with biases and norms off their rest values, so that every path matters."""
    rng = numpy.random.Generator(numpy.random.Philox(SEED))
    with torch.no_grad():
        for name, p in model.named_parameters():
            rest = float(p.flatten()[0]) if p.dim() == 1 and "norm" in name and "weight" in name else 0.0
            value = rest + (0.25 if p.dim() >= 2 else 0.1) * rng.standard_normal(tuple(p.shape))
            p.copy_(torch.from_numpy(value).to(torch.bfloat16).to(p.dtype))


def loss_of(model, context):
    tokens = read_tokens()
    count = (len(tokens) - 1) // context
    rows = torch.from_numpy(numpy.stack([tokens[i * context:(i + 1) * context + 1] for i in range(count)]))
    with torch.no_grad():
        logits = model(input_ids=rows[:, :-1], use_cache=False).logits.double()
        return float(torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), rows[:, 1:].reshape(-1)))


def load(path):
    return AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()


def make_adapter(path):
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(load(path), LoraConfig(task_type="CAUSAL_LM", r=2, lora_alpha=4, target_modules=TARGETS)).eval()
    rng = numpy.random.Generator(numpy.random.Philox(SEED))
    with torch.no_grad():
        for name, p in adapted.named_parameters():
            if "lora_" in name:
                p.copy_(torch.from_numpy(0.25 * rng.standard_normal(tuple(p.shape))).float())
    loss = loss_of(adapted, CONTEXT)
    adapted.peft_config["default"].base_model_name_or_path = os.path.basename(path)
    adapted.save_pretrained(os.path.join(path, "adapter"))
    os.remove(os.path.join(path, "adapter", "README.md"))
    return loss


def make_wrapper(name):
    path = f"tests/golden/wrappers/{name}"
    model = AutoModelForImageTextToText.from_config(AutoConfig.for_model(name, **WRAPPERS[name])).eval()
    make_weights(model)
    model.to(torch.bfloat16).save_pretrained(path)
    golden = {"transformers": __import__("transformers").__version__, "loss": loss_of(load(path), CONTEXT)}
    if name == ADAPTED:
        golden["adapted"] = make_adapter(path)
    write_json(os.path.join(path, "golden.json"), golden)
    print(name, golden)


def make_ropes():
    os.makedirs("tests/golden/rope", exist_ok=True)
    losses = {}
    for name, (context, keys) in ROPES.items():
        with open(f"{FAMILY}/config.json") as f:
            config = {k: v for k, v in json.load(f).items() if k not in ("rope_theta", "rope_scaling")} | keys
        write_json(f"tests/golden/rope/{name}.json", config)
        with tempfile.TemporaryDirectory() as tmp:
            write_json(f"{tmp}/config.json", config)
            os.symlink(os.path.abspath(f"{FAMILY}/model.safetensors"), f"{tmp}/model.safetensors")
            model = AutoModelForCausalLM.from_pretrained(tmp, dtype=torch.float32, attn_implementation="eager").eval()
            losses[name] = {"seq": context, "loss": loss_of(model, context)}
    write_json("tests/golden/rope/golden.json", losses)
    print(losses)


def run(strata, *words):
    done = subprocess.run([strata, *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{words}: {done.stderr}")
    return done.stdout


def expect_equal(path, other):
    ours, theirs = load_file(f"{path}/model.safetensors"), load_file(f"{other}/model.safetensors")
    assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
    for key, value in theirs.items():
        assert torch.equal(ours[key].float(), value.float()), key
    _, info = AutoModelForImageTextToText.from_pretrained(path, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info


def as_in_memory(path, to):
    """The same model, with the names that transformers has in memory."""
    model = load(path).to(torch.bfloat16)
    os.makedirs(to)
    state = {k: v.clone() for k, v in model.state_dict().items() if k != "lm_head.weight" or not model.config.tie_word_embeddings}
    save_file(state, f"{to}/model.safetensors", {"format": "pt"})
    model.config.save_pretrained(to)


def check_adapter(strata, path, tmp, train):
    from peft import PeftModel

    run(strata, *train, "--max-steps", "4", "--lr", "1e-2", "--out", f"{tmp}/a", "--set", "bf16.enabled=false", "--set",
        json.dumps({"r": 2, "target_modules": ["q_proj", "v_proj"]}).join(("strata.lora=", "")))
    ours = run(strata, "eval", "--model", path, "--adapter", f"{tmp}/a", "--data", TOKENS, "--seq-len", str(CONTEXT), "--set", "bf16.enabled=false")
    theirs = loss_of(PeftModel.from_pretrained(load(path), f"{tmp}/a").eval(), CONTEXT)
    assert abs(float(re.search(r"loss ([0-9.]+)", ours)[1]) - theirs) < 2e-6 * theirs, (ours, theirs)
    run(strata, "export", "--merge", "--model", path, "--adapter", f"{tmp}/a", "--out", f"{tmp}/m")
    merged = loss_of(load(f"{tmp}/m"), CONTEXT)
    assert abs(merged - theirs) < 1e-2 * theirs, (merged, theirs)


def check(strata, name):
    path = f"tests/golden/wrappers/{name}"
    with tempfile.TemporaryDirectory() as tmp:
        as_in_memory(path, f"{tmp}/memory")
        for source, to in ((path, "1"), (f"{tmp}/memory", "2")):
            train = ["train", "--model", source, "--data", TOKENS, "--seq-len", str(CONTEXT), "--quiet", "--machine", "tests/machines/two-cores.json"]
            run(strata, *train, "--max-steps", "1", "--lr", "0", "--out", f"{tmp}/{to}", "--save", f"{tmp}/{to}.ck", "--set", "bf16.enabled=true")
            expect_equal(f"{tmp}/{to}", source)
            run(strata, "export", f"{tmp}/{to}.ck", "--out", f"{tmp}/{to}.x")
            expect_equal(f"{tmp}/{to}.x", source)
            os.makedirs(f"{tmp}/{to}.b")
            check_adapter(strata, source, f"{tmp}/{to}.b", train)
    print(name, "agrees")


def main():
    if sys.argv[1] == "check":
        for name in sys.argv[3:] or WRAPPERS:
            check(sys.argv[2], name)
        return
    for name in sys.argv[2:] or WRAPPERS:
        make_wrapper(name)
    make_ropes()


if __name__ == "__main__":
    main()
