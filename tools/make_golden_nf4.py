#!/usr/bin/env python3
"""Make tests/golden/nf4: what bitsandbytes on the CPU makes of tensors in NF4, for tests/kernels/test_nf4.c, and directories that
transformers saves with such weights, for tests/model/test_hf_packed.c.

Never run by tests or CI; its output is committed.  Needs bitsandbytes, torch, transformers and accelerate:

    python3 tools/make_golden_nf4.py [--out tests/golden/nf4] [--random TENSORS]

tensors.bin, little-endian, for each tensor: the number of elements as uint32, then them in fp32; the magnitude of each block of 64
in fp32; the codes, two to a byte, the first one high; the elements that come back, in fp32, bf16 and fp16.  In bf16 bitsandbytes
makes a product below 2^-126 zero where the processor has AVX512_BF16, whose instruction does so; written is the rounded product.
plain, double: a model of one block, the latter with quantised scales; values.txt has the FNV-1a hash of each quantised tensor's
values in fp32.
--random: as many random tensors more, of up to 100000 elements.
"""
import argparse
import os

import bitsandbytes
import torch
from bitsandbytes import functional
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig

torch.compiler.set_stance("force_eager")  # odd lengths go through torch.compile, which takes a second for each

BLOCK = 64
VALUES = functional.get_4bit_type("nf4", device="cpu")
MOST = torch.finfo(torch.float32).max
BOUNDS = (VALUES[:-1] + VALUES[1:]) / 2


def neighbours(x):
    down, up = torch.full_like(x, -torch.inf), torch.full_like(x, torch.inf)
    return torch.cat([x, torch.nextafter(x, down), torch.nextafter(x, up)])


def block(values, most):
    """A block whose largest magnitude is `most`, times the values."""
    out = torch.zeros(BLOCK)
    out[0] = most
    out[1:1 + len(values)] = values * most
    return torch.clamp(out, -MOST, MOST)


def adversarial():
    """Ties between two codes and what is one step off, at scales whose reciprocal is exact or not; zeros of both signs;
    subnormal and tiny magnitudes; one large value; last blocks of few elements."""
    tensors = []
    for most in (1.0, -1.0, 2.0**-20, 2.0**100, 3.0, 0.1, 1e-3, 7e30, MOST, 1.5e-38, 1.1754943508222875e-38, 1e-38,
                 9.9e-39, 1e-39, 1e-42, 1.401298464324817e-45):
        tensors.append(torch.cat([block(neighbours(BOUNDS), most), block(neighbours(VALUES), most), block(BOUNDS, -most)]))
    tensors.append(torch.zeros(2 * BLOCK))
    tensors.append(-torch.zeros(BLOCK))
    generator = torch.Generator().manual_seed(1)
    for elems in (1, 2, 3, 31, 32, 33, 62, 63, 65, 127, 191, 1000):
        tensors.append(torch.randn(elems, generator=generator) * 0.02)
    for elems in (5, 63, 70):
        tensors.append(torch.zeros(elems))
        tensors.append(torch.full((elems,), 1e-40))
        tensors.append(torch.cat([BOUNDS, BOUNDS, BOUNDS, BOUNDS, BOUNDS])[:elems] * 0.7)
    outlier = torch.randn(4 * BLOCK, generator=generator) * 1e-3
    outlier[[3, 77, 130, 255]] = torch.tensor([100.0, -1e4, 1e20, -0.5])
    tensors.append(outlier)
    tensors.append(torch.randn(30 * BLOCK, generator=generator).bfloat16().float())
    return tensors


def random_tensors(count):
    generator = torch.Generator().manual_seed(2)
    for _ in range(count):
        elems = int(torch.randint(1, 100001, (1,), generator=generator))
        scale = 2.0 ** float(torch.randint(-140, 120, (1,), generator=generator))
        out = torch.randn(elems, generator=generator) * scale
        kind = int(torch.randint(0, 4, (1,), generator=generator))
        if kind == 1:  # near the ties
            picks = torch.randint(0, len(BOUNDS), (elems,), generator=generator)
            out = BOUNDS[picks] * scale
            out[::BLOCK] = scale
        elif kind == 2:  # a wide range of magnitudes
            out = out * torch.exp2(torch.randint(-30, 5, (elems,), generator=generator).float())
        elif kind == 3:
            out = out.bfloat16().float()
        yield torch.nan_to_num(out, posinf=MOST, neginf=-MOST)


def write(file, tensor):
    packed, state = functional.quantize_4bit(tensor, blocksize=BLOCK, quant_type="nf4")
    file.write(len(tensor).to_bytes(4, "little"))
    file.write(tensor.numpy().tobytes())
    file.write(state.absmax.numpy().tobytes())
    file.write(packed.flatten().numpy().tobytes())
    wide = None
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        state.dtype = dtype
        back = functional.dequantize_4bit(packed, state).reshape(-1)
        wide = back if wide is None else wide
        back = torch.where((wide.abs() < 2.0**-126) & (back == 0), wide.to(dtype), back)
        file.write(back.view(torch.int32 if dtype == torch.float32 else torch.int16).numpy().tobytes())


def make(out, count):
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, "tensors.bin"), "wb") as file:
        for tensor in adversarial():
            write(file, tensor)
        for tensor in random_tensors(count):
            write(file, tensor)


def fnv(data):
    out = 0xcbf29ce484222325
    for byte in data:
        out = (out ^ byte) * 0x100000001b3 % 2**64
    return out


def make_directory(out, double):
    torch.manual_seed(3)
    sizes = dict(vocab_size=32, hidden_size=64, intermediate_size=320, num_hidden_layers=1, num_attention_heads=2,
                 num_key_value_heads=1, max_position_embeddings=64, tie_word_embeddings=True)
    AutoModelForCausalLM.from_config(LlamaConfig(**sizes)).bfloat16().save_pretrained(out)
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=double,
                                bnb_4bit_compute_dtype=torch.bfloat16)
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.bfloat16, device_map="cpu", quantization_config=config)
    model.save_pretrained(out)
    os.remove(os.path.join(out, "generation_config.json"))
    with open(os.path.join(out, "values.txt"), "w") as file:
        for name, module in model.named_modules():
            if type(module).__name__ == "Linear4bit":
                module.weight.quant_state.dtype = torch.float32
                values = functional.dequantize_4bit(module.weight.data, module.weight.quant_state)
                file.write(f"{name}.weight {fnv(values.numpy().tobytes()):016x}\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="tests/golden/nf4")
    parser.add_argument("--random", type=int, default=0)
    arguments = parser.parse_args()
    make(arguments.out, arguments.random)
    for double in (False, True):
        make_directory(os.path.join(arguments.out, "double" if double else "plain"), double)
    print(f"{arguments.out}: bitsandbytes {bitsandbytes.__version__}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
