#!/usr/bin/env python3
"""A module of PyTorch's on this device, under strata: tools/gpu_module.py [DEVICE]

Ten steps in fp32 of 6 encoder layers with dropout 0: resident, and with weights and state in main memory and in files.
Their losses and weights must be equal bit for bit, and losses those of PyTorch alone within 1e-5.  One line each.
DEVICE is cuda, cuda:N or cpu; STRATA_LIBRARY names the library.  Exit code 77 without torch, library or device."""

import os
import sys
import tempfile
from pathlib import Path

DEVICE = (sys.argv[1:] or ["cuda"])[0]
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
try:
    import torch

    import strata
    from strata.torch import Engine
except ImportError as error:
    sys.exit(print(f"skipped: {error}", file=sys.stderr) or 77)
if not os.path.exists(os.environ.get("STRATA_LIBRARY", "")) or (DEVICE.startswith("cuda") and not torch.cuda.is_available()):
    sys.exit(print("skipped: no library, or torch sees no GPU", file=sys.stderr) or 77)

STEPS, RULE = 10, {"lr": 1e-3, "weight_decay": 0.01}
CONFIG = {"train_batch_size": 4, "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": RULE}}


def made():
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, num_layers=6, enable_nested_tensor=False)


def batch(step):
    return torch.randn(4, 64, 256, generator=torch.Generator().manual_seed(step)).to(DEVICE)


def alone():
    module = made().to(DEVICE)
    optimizer = torch.optim.AdamW(module.parameters(), **RULE)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = (module(batch(step)) ** 2).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        yield loss.item()


def under(tier, directory):
    offload = {"device": tier, **({"nvme_path": directory} if tier == "nvme" else {})}
    zero = {"stage": 3, "offload_param": offload, "offload_optimizer": offload}
    config = CONFIG if tier == "none" else {**CONFIG, "zero_optimization": zero}
    example = {} if tier == "none" else {"example": batch(0).cpu()}
    engine = Engine(made(), config, machine=strata.Machine(device=DEVICE), **example)
    losses = []
    for step in range(STEPS):
        engine.backward((engine(batch(step)) ** 2).mean())
        losses.append(engine.step().loss)
    weights = {name: value.cpu().clone() for name, value in engine.module.state_dict().items()}
    engine.destroy()
    return losses, weights


def main():
    wanted = list(alone())
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as directory:
        runs = {tier: under(tier, directory) for tier in ("none", "cpu", "nvme")}
    first = runs["none"]
    far = max(abs(ours / theirs - 1) for ours, theirs in zip(first[0], wanted))
    print(f"losses of {STEPS} steps are PyTorch's within {far:.1e}")
    wrong = far > 1e-5
    for tier, (losses, weights) in runs.items():
        same = losses == first[0] and all(map(torch.equal, weights.values(), first[1].values()))
        print(f"{tier}: {'equal bits' if same else 'OTHER BITS'}")
        wrong = wrong or not same
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
