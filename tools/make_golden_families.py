#!/usr/bin/env python3
"""Make tests/golden/families and tests/golden/experts: a tiny model of each family, and what transformers computes with it.

Never run by tests or CI; its output is committed.  Made with transformers 4, then checked with transformers 5, which adds the
config.json that it would write:

    python4 tools/make_golden_families.py make [NAME...]
    python5 tools/make_golden_families.py check [NAME...]
    python5 tools/make_golden_families.py aux [NAME...]
    python5 tools/make_golden_families.py packed [NAME...]

Files of each: config.json, config5.json, model.safetensors (initial weights, bf16 numbers), tokens.bin (80 windows), config_ds.json
(DeepSpeed), golden.json: loss and samples of the gradients of the first micro-batch in fp64, losses and gradient norms of 20 AdamW
steps in fp32, and the 64 likeliest tokens after a prompt, with the smallest distance between the first and second logit.

Models with experts are made by transformers 5 with its eager experts, which add in ascending order.  Their weights are drawn until
no choice of an expert, in all of this, is nearer than MARGIN to another one, and nothing that gpt_oss clamps nearer than LIMIT_MARGIN
to its limit.  golden_aux.json of them is what their own loss gives with output_router_logits, which has their auxiliary loss: the
first micro-batch has sequences that end in padding.

golden_packed.json is of windows that are documents: their lengths in the four windows of a step, drawn until all choices are clear.
Each goes through the model by itself, since the mask of transformers' gpt_oss knows of no documents in eager attention.
"""
import argparse
import json
import os
import shutil

import numpy
import torch
import transformers
from make_golden import (CLIP, CONTEXT, DECAY, BETAS, EPS, LR, MICRO_BATCH, ACCUMULATION, STEPS, VOCAB, DEEPSPEED_CONFIG, SEED,
                         make_tokens, micro_batch, write_json, write_tokens)
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

SAMPLES, PROMPT, NEW = 4, 20, 64
WINDOWS = MICRO_BATCH * ACCUMULATION  # of a step
# No pad token: torch's embedding gives its row no gradient.  No end token: texts have their full length.
SIZES = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=128, rms_norm_eps=1e-5, attention_dropout=0.0, pad_token_id=None, eos_token_id=None)

FAMILIES = {
    "gpt2_exact": dict(model_type="gpt2", vocab_size=VOCAB, n_positions=128, n_embd=32, n_layer=2, n_head=4, n_inner=40,
                       resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, activation_function="gelu", tie_word_embeddings=False,
                       eos_token_id=None, scale_attn_by_inverse_layer_idx=True),
    "llama_linear": dict(SIZES, model_type="llama", head_dim=16, attention_bias=True, mlp_bias=True,
                         rope_scaling={"rope_type": "linear", "factor": 2.0}),
    "mistral_window": dict(SIZES, model_type="mistral", head_dim=16, sliding_window=8),
    "qwen2_layers": dict(SIZES, model_type="qwen2", use_sliding_window=True, sliding_window=12, max_window_layers=1),
    "qwen3_bias": dict(SIZES, model_type="qwen3", head_dim=16, attention_bias=True, tie_word_embeddings=True),
    "smollm3_yarn": dict(SIZES, model_type="smollm3", no_rope_layers=[1, 0], mlp_bias=True, tie_word_embeddings=True,
                         rope_scaling={"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16}),
    "phi3_long": dict(SIZES, model_type="phi3", partial_rotary_factor=0.5, sliding_window=12,
                      original_max_position_embeddings=16,
                      rope_scaling={"type": "su", "short_factor": [1.0, 1.5], "long_factor": [1.25, 3.0]}),
    "gemma2_caps": dict(SIZES, model_type="gemma2", head_dim=16, sliding_window=8, query_pre_attn_scalar=24,
                        attn_logit_softcapping=2.0, final_logit_softcapping=3.0),
    "gemma3_local": dict(SIZES, model_type="gemma3_text", num_hidden_layers=3, head_dim=16, sliding_window=8,
                         sliding_window_pattern=2, query_pre_attn_scalar=24, rope_theta=1000.0, rope_local_base_freq=100.0,
                         rope_scaling={"rope_type": "linear", "factor": 4.0}),
    "olmo2": dict(SIZES, model_type="olmo2", attention_bias=True),
}
MARGIN, LIMIT_MARGIN = 1e-4, 8e-7
AUX_COEFS = [0.05 + 0.001 * i for i in range(400)]  # the first with which all choices are clear
AUX_COEFS_OF = {"gpt_oss_one": [1e-5 * i for i in range(1, 400)]}  # with more, all rows come to the border of two experts at once
PADDED = [6, 3]  # tokens that end the first micro-batch's sequences: with as many as a window transformers has NaN
# STACKED: those whose files have the experts of a layer in one tensor.  ALL_TO_ONE: every row chooses the same expert.
EXPERTS = {
    "qwen3_moe": dict(SIZES, model_type="qwen3_moe", num_hidden_layers=3, head_dim=16, num_experts=5, num_experts_per_tok=2,
                      moe_intermediate_size=24, norm_topk_prob=True, mlp_only_layers=[1], use_sliding_window=True, sliding_window=12),
    "qwen3_moe_one": dict(SIZES, model_type="qwen3_moe", head_dim=16, num_experts=5, num_experts_per_tok=1, moe_intermediate_size=24,
                          attention_bias=True),
    "qwen2_moe": dict(SIZES, model_type="qwen2_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24,
                      shared_expert_intermediate_size=16, use_sliding_window=True, sliding_window=12, max_window_layers=1),
    "olmoe": dict(SIZES, model_type="olmoe", num_experts=4, num_experts_per_tok=2, clip_qkv=1.25),
    "mixtral": dict(SIZES, model_type="mixtral", head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=8),
    "gpt_oss": dict(SIZES, model_type="gpt_oss", num_hidden_layers=3, head_dim=16, num_local_experts=4, num_experts_per_tok=2,
                    sliding_window=8, swiglu_limit=0.75, swiglu_alpha=1.25, rope_theta=1000.0,
                    rope_parameters={"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16, "truncate": False,
                                     "rope_theta": 1000.0}),
    "gpt_oss_one": dict(SIZES, model_type="gpt_oss", head_dim=16, num_local_experts=5, num_experts_per_tok=1, sliding_window=12,
                        attention_bias=False, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
}
STACKED = {"qwen2_moe", "olmoe", "gpt_oss", "gpt_oss_one"}
ALL_TO_ONE = {"qwen3_moe_one", "gpt_oss_one"}
PARTS = {"mixtral": ("block_sparse_moe", "w1", "w3", "w2")}


def make_weights(model, seed=SEED):
    """Larger than a model's own, with biases and norms off their rest values, so that every path matters."""
    rng = numpy.random.Generator(numpy.random.Philox(seed))
    with torch.no_grad():
        for name, p in model.named_parameters():
            rest = float(p.flatten()[0]) if p.dim() == 1 and "norm" in name or ".ln_" in name and "weight" in name else 0.0
            value = rest + (0.25 if p.dim() >= 2 else 0.1) * rng.standard_normal(tuple(p.shape))
            p.copy_(torch.from_numpy(value).to(torch.bfloat16).to(p.dtype))


def choose_one(model):
    """The table's first column is large, and all that a router sees."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("embed_tokens.weight"):
                p[:, 0] = 8.0
            elif name.endswith(("mlp.gate.weight", "mlp.router.weight")):
                p[:, 1:] = 0.0
                p[:, 0] = torch.tensor([-0.5, 0.25, 0.75, -0.25, 0.0])
            elif name.endswith("mlp.router.bias"):
                p[:] = 0.0


NEAREST = [float("inf")]


def watch_choices(model):
    def hook(module, inputs, output):
        probs = torch.softmax(output[0].double(), dim=-1).sort(dim=-1, descending=True).values
        NEAREST[0] = min(NEAREST[0], (probs[:, module.top_k - 1] - probs[:, module.top_k]).min().item())
        if NEAREST[0] < MARGIN:
            raise SystemExit("a choice is not clear")

    for module in model.modules():
        if type(module).__name__.endswith("TopKRouter"):
            module.register_forward_hook(hook)
        if type(module).__name__ == "GptOssExperts":
            module._apply_gate = watch_limit(module)


def watch_limit(experts):
    """Its gate, where no value is so near to a limit that rounding decides whether it has a gradient."""
    gate = experts._apply_gate

    def watched(gate_up):
        signed = torch.cat((gate_up[..., ::2], gate_up[..., 1::2].abs()), dim=-1)
        if ((signed - experts.limit).abs() < LIMIT_MARGIN).any():
            raise SystemExit("a value is at its limit")
        return gate(gate_up)

    return watched


def build(path, dtype, watched=True):
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="eager").eval()
    if hasattr(model.config, "num_experts_per_tok"):
        model.set_experts_implementation("eager")
        if watched:
            watch_choices(model)
    return model


def per_expert(name, values):
    """A tensor as files without stacks have it: {name: values}."""
    family = next((f for f in PARTS if f in TYPE), None)
    block, gate, up, down = PARTS.get(family, ("mlp", "gate_proj", "up_proj", "down_proj"))
    if name.endswith("mlp.gate.weight"):
        return {name.replace("mlp.gate", block + ".gate"): values}
    if ".mlp.experts." not in name:
        return {name: values}
    prefix = name.split(".mlp.experts.")[0] + "." + block + ".experts"
    if "gpt_oss" in TYPE:
        return {f"{prefix}.{expert}.{name.rsplit('.', 1)[1]}": own.clone() for expert, own in enumerate(values)}
    tensors = {}
    for expert, own in enumerate(values):
        parts = {gate: own[:own.shape[0] // 2], up: own[own.shape[0] // 2:]} if name.endswith("gate_up_proj") else {down: own}
        tensors.update({f"{prefix}.{expert}.{part}.weight": value.clone() for part, value in parts.items()})
    return tensors


TYPE = ""


def mean_loss(model, tokens, targets):
    logits = model(input_ids=tokens, use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), targets.reshape(-1))


def first_gradients(path, tokens):
    model = build(path, torch.float64)
    loss = mean_loss(model, *micro_batch(tokens, 0))
    loss.backward()
    gradients = {}
    for name, grad in ((n, g) for name, p in model.named_parameters() for n, g in per_expert(name, p.grad).items()):
        flat = grad.flatten()
        stride = max(1, flat.numel() // SAMPLES)
        gradients[name] = {"norm": float(flat.norm()), "stride": stride, "samples": [float(v) for v in flat[::stride][:SAMPLES]]}
    return {"loss": float(loss), "gradients": gradients}


def decays(name, p):
    """As transformers' Trainer has it, by names; of most families these are the matrices."""
    return p.dim() >= 2 and not name.endswith("_bias") or name.endswith(".sinks")


def optimizer_of(model):
    named = list(model.named_parameters())
    return torch.optim.AdamW([{"params": [p for n, p in named if decays(n, p)], "weight_decay": DECAY},
                              {"params": [p for n, p in named if not decays(n, p)], "weight_decay": 0.0}],
                             lr=LR, betas=BETAS, eps=EPS)


def train(path, tokens):
    model = build(path, torch.float32)
    parameters = list(model.parameters())
    optimizer = optimizer_of(model)
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


def aux_loss(model, tokens, targets, count, mask=None):
    """Of a micro-batch of a step of `count` targets, as Trainer asks for it: the loss, and the auxiliary one that it has."""
    out = model(input_ids=tokens, attention_mask=mask, labels=tokens, shift_labels=targets.contiguous(), num_items_in_batch=count,
                output_router_logits=True, use_cache=False)
    return out.loss, out.aux_loss


def with_aux(path, dtype, coef, watched=True):
    model = build(path, dtype, watched)
    model.config.router_aux_loss_coef = model.router_aux_loss_coef = coef
    return model


def padded_gradients(path, tokens, coef):
    """Choices of tokens are those of first_gradients(); those of padding do not matter."""
    model = with_aux(path, torch.float64, coef, watched=False)
    rows, targets = micro_batch(tokens, 0)
    rows, targets, mask = rows.clone(), targets.clone(), torch.ones_like(rows)
    for sequence, pads in enumerate(PADDED):
        rows[sequence, -pads:], mask[sequence, -pads:], targets[sequence, -pads - 1:] = 0, 0, -100
    loss, aux = aux_loss(model, rows, targets, int((targets != -100).sum()), mask)
    loss.backward()
    gradients = {n: float(g.norm()) for name, p in model.named_parameters() for n, g in per_expert(name, p.grad).items()}
    return {"padded": PADDED, "loss": loss.item(), "aux_loss": aux.item(), "gradients": gradients}


def train_aux(path, tokens, coef):
    model = with_aux(path, torch.float32, coef)
    parameters = list(model.parameters())
    optimizer = optimizer_of(model)
    losses, auxes, norms, position = [], [], [], 0
    for _ in range(STEPS):
        optimizer.zero_grad()
        total, means = 0.0, 0.0
        for _ in range(ACCUMULATION):
            rows, targets = micro_batch(tokens, position)
            loss, aux = aux_loss(model, rows, targets, targets.numel() * ACCUMULATION)
            loss.backward()
            total, means = total + loss.item(), means + aux.item() / ACCUMULATION
            position += MICRO_BATCH
        norms.append(float(torch.nn.utils.clip_grad_norm_(parameters, CLIP)))
        losses.append(total)
        auxes.append(means)
        optimizer.step()
    return {"losses": losses, "aux_losses": auxes, "grad_norms": norms}


def aux(name, path):
    global TYPE
    TYPE = json.load(open(path + "/config.json"))["model_type"]
    tokens = numpy.fromfile(path + "/tokens.bin", dtype="<u2", offset=1024)
    for coef in (round(c, 5) for c in AUX_COEFS_OF.get(name, AUX_COEFS)):
        NEAREST[0] = float("inf")
        try:
            steps = train_aux(path, tokens, coef)
        except SystemExit:
            continue
        write_json(path + "/golden_aux.json", {
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
            "router_aux_loss_coef": coef,
            "first_micro_batch": padded_gradients(path, tokens, coef),
            "in_order": steps,
        })
        print(f"{name}: coefficient {coef}, choices {NEAREST[0]:.2e}")
        return []
    raise SystemExit(name + ": no coefficient with clear choices")


def draw_documents(rng):
    """Lengths for each window of a step; the last token of a document has no target."""
    cuts = [sorted(rng.choice(numpy.arange(2, CONTEXT - 1), size=int(rng.integers(1, 4)), replace=False)) for _ in range(WINDOWS)]
    return [[int(end - start) for start, end in zip([0, *own], [*own, CONTEXT])] for own in cuts]


def documents_loss(model, rows, documents):
    """Sum of the losses of these windows' targets, [windows, CONTEXT], and how many these are."""
    total, count = 0.0, 0
    for row, lengths in zip(rows, documents):
        for text in torch.split(row, lengths):
            logits = model(input_ids=text[None, :], use_cache=False).logits[0, :-1]
            total = total + torch.nn.functional.cross_entropy(logits, text[1:], reduction="sum")
            count += len(text) - 1
    return total, count


def packed_gradients(path, tokens, documents):
    model = build(path, torch.float64)
    total, count = documents_loss(model, micro_batch(tokens, 0)[0], documents)
    (total / count).backward()
    gradients = {n: float(g.norm()) for name, p in model.named_parameters() for n, g in per_expert(name, p.grad).items()}
    return {"loss": total.item() / count, "gradients": gradients}


def train_packed(path, tokens, documents):
    model = build(path, torch.float32)
    parameters = list(model.parameters())
    optimizer = optimizer_of(model)
    targets = sum(length - 1 for own in documents for length in own)
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        mean = 0.0
        for micro in range(0, WINDOWS, MICRO_BATCH):
            rows, _ = micro_batch(tokens, step * WINDOWS + micro)
            loss = documents_loss(model, rows, documents[micro:micro + MICRO_BATCH])[0] / targets
            loss.backward()
            mean += loss.item()
        norms.append(float(torch.nn.utils.clip_grad_norm_(parameters, CLIP)))
        losses.append(mean)
        optimizer.step()
    return {"losses": losses, "grad_norms": norms}


def packed(name, path):
    global TYPE
    TYPE = json.load(open(path + "/config.json"))["model_type"]
    tokens = numpy.fromfile(path + "/tokens.bin", dtype="<u2", offset=1024)
    for seed in range(400):
        documents = draw_documents(numpy.random.Generator(numpy.random.Philox(seed)))
        NEAREST[0] = float("inf")
        try:
            first, steps = packed_gradients(path, tokens, documents), train_packed(path, tokens, documents)
        except SystemExit:
            continue
        write_json(path + "/golden_packed.json", {
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
            "documents": documents,
            "first_micro_batch": first,
            "in_order": steps,
        })
        print(f"{name}: seed {seed}, documents {documents}, choices {NEAREST[0]:.2e}")
        return []
    raise SystemExit(name + ": no documents with clear choices")


def greedy(path, tokens):
    """The first prompt in the data whose choices are all clear."""
    model = build(path, torch.float32)
    for start in range(0, len(tokens) - PROMPT, PROMPT):
        prompt = [int(t) for t in tokens[start:start + PROMPT]]
        ids, margin = list(prompt), float("inf")
        with torch.no_grad():
            for _ in range(NEW):
                top = torch.topk(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1], 2)
                margin = min(margin, float(top.values[0] - top.values[1]))
                ids.append(int(top.indices[0]))
        if margin > 1e-3:
            return {"prompt": prompt, "tokens": ids[PROMPT:], "margin": margin}
    raise SystemExit(path + ": no prompt with clear choices")


def make(name, path):
    """Until all choices are clear."""
    for seed in range(SEED, SEED + 400):
        NEAREST[0] = float("inf")
        try:
            make_once(name, path, seed)
        except SystemExit:
            continue
        print(f"{name}: seed {seed}, choices {NEAREST[0]:.2e}")
        return []
    raise SystemExit(name + ": no weights with clear choices")


def make_once(name, path, seed):
    global TYPE
    values = dict(FAMILIES.get(name) or EXPERTS[name])
    TYPE = values["model_type"]
    rng = numpy.random.Generator(numpy.random.Philox(SEED + 1))
    tokens = make_tokens(STEPS * ACCUMULATION * MICRO_BATCH * CONTEXT + 1, rng)
    shutil.rmtree(path, ignore_errors=True)
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    make_weights(model, seed)
    if name in ALL_TO_ONE:
        choose_one(model)
    config.architectures, config.torch_dtype = [type(model).__name__], "float32"
    config.save_pretrained(path)
    tensors = {n: p.detach().to(torch.bfloat16) for n, p in model.named_parameters()}
    if name in EXPERTS and name not in STACKED:
        tensors = {n: v.contiguous() for name, p in tensors.items() for n, v in per_expert(name, p).items()}
    save_file(tensors, path + "/model.safetensors", metadata={"format": "pt"})
    write_tokens(path + "/tokens.bin", tokens)
    write_json(path + "/config_ds.json", DEEPSPEED_CONFIG)
    write_json(path + "/golden.json", {
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "parameters": sum(p.numel() for p in model.parameters()),
        "seq_len": CONTEXT,
        "first_micro_batch": first_gradients(path, tokens),
        "in_order": train(path, tokens),
        "greedy": greedy(path, tokens),
    })


def same(have, want, tolerance):
    return all(abs(a - b) <= tolerance * abs(b) for a, b in zip(have, want))


def check(name, path):
    """This version's numbers against those of the one that made them."""
    golden = json.load(open(path + "/golden.json"))
    tokens = numpy.fromfile(path + "/tokens.bin", dtype="<u2", offset=1024)
    first, steps = first_gradients(path, tokens), train(path, tokens)
    names = golden["first_micro_batch"]["gradients"]
    wrong = [key for key, ok in {
        "loss": same([first["loss"]], [golden["first_micro_batch"]["loss"]], 1e-6),
        "gradients": same([first["gradients"][n]["norm"] for n in names], [names[n]["norm"] for n in names], 1e-5),
        "losses": same(steps["losses"], golden["in_order"]["losses"], 1e-5),
        "greedy": greedy(path, tokens)["tokens"] == golden["greedy"]["tokens"]}.items() if not ok]
    AutoConfig.from_pretrained(path).save_pretrained(path + "/5")
    os.rename(path + "/5/config.json", path + "/config5.json")
    shutil.rmtree(path + "/5")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=os.path.join(os.path.dirname(__file__), "..", "tests", "golden"))
    parser.add_argument("action", choices=["make", "check", "aux", "packed"])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join([*FAMILIES, *EXPERTS]) + "; default: all but those with experts")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for name in args.names or FAMILIES:
        folder = os.path.join(args.out, "experts" if name in EXPERTS else "families")
        wrong = {"make": make, "check": check, "aux": aux, "packed": packed}[args.action](name, os.path.join(folder, name))
        print(f"{name}: transformers {transformers.__version__}", "differs: " + ", ".join(wrong) if wrong else "ok")


if __name__ == "__main__":
    main()
