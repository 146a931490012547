#!/usr/bin/env python3
"""Make tests/golden/attention.txt: attention with windows, scales, soft-capping and documents, by transformers' eager attention.

Never run by tests or CI; its output is committed:

    python3 tools/make_golden_attention.py >tests/golden/attention.txt

A case is a line "batch seq heads kv_heads head_dim window scale softcap", then five lines: positions, packed rows of q, k and v,
gradient of the output, output, gradient of the packed rows.  Products are fp64 and the softmax fp32; masks are those of
transformers.masking_utils (made with 4.57.6; 5.23.0 gives the same file).
"""
import torch
from transformers.masking_utils import (and_masks, causal_mask_function, packed_sequence_mask_function, sliding_window_overlay)
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward

SEQ, HEADS, KV_HEADS, HEAD_DIM = 7, 2, 1, 2
CASES = [dict(window=3), dict(scale=0.3, softcap=1.5), dict(documents=(2, 4, 1)),
         dict(window=2, scale=0.9, softcap=0.7, documents=(3, 4))]


class Module(torch.nn.Module):
    num_key_value_groups, head_dim = HEADS // KV_HEADS, HEAD_DIM


def numbers(x):
    return " ".join("%.9g" % v for v in x.flatten().float().tolist())


def case(index, window=0, scale=0.0, softcap=0.0, documents=(SEQ,)):
    torch.manual_seed(index)
    width = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    qkv = torch.randn(SEQ, width).double().requires_grad_()
    dout = torch.randn(SEQ, HEADS * HEAD_DIM).double()
    positions = torch.cat([torch.arange(n) for n in documents])
    ids = torch.cat([torch.full((n,), i) for i, n in enumerate(documents)])[None]
    seen = and_masks(causal_mask_function, packed_sequence_mask_function(ids))
    if window > 0:
        seen = and_masks(seen, sliding_window_overlay(window))
    at = torch.arange(SEQ)
    visible = torch.tensor([[bool(seen(at[0], at[0], q, k)) for k in at] for q in at])
    mask = torch.zeros(SEQ, SEQ).double().masked_fill(~visible, torch.finfo(torch.float64).min)[None, None]
    q, k, v = qkv.split([HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM], dim=1)
    rows = [x.view(SEQ, -1, HEAD_DIM).transpose(0, 1)[None] for x in (q, k, v)]
    out = eager_attention_forward(Module(), *rows, mask, scaling=scale or None, softcap=softcap or None)[0].reshape(SEQ, -1)
    out.backward(dout)
    print(1, SEQ, HEADS, KV_HEADS, HEAD_DIM, window, scale, softcap)
    for x in (positions, qkv, dout, out, qkv.grad):
        print(numbers(x.detach()))


for i, options in enumerate(CASES):
    case(i, **options)
