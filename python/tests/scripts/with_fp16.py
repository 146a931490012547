"""fp16 with dynamic loss scaling, with gradients that overflow twice: nothing in it knows of strata."""

import json
import sys

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator

CONFIG = {
    "train_batch_size": 4,
    "zero_allow_untested_optimizer": True,
    "fp16": {"enabled": True, "initial_scale_power": 8, "loss_scale_window": 3, "hysteresis": 1, "min_loss_scale": 1},
    "zero_optimization": {"stage": 1},
}


def main(log):
    get_accelerator().is_fp16_supported = lambda: True  # DeepSpeed says no to CPUs without instructions of fp16
    deepspeed.init_distributed()
    torch.manual_seed(7)
    net = torch.nn.Linear(8, 1)
    adam = torch.optim.AdamW(net.parameters(), lr=1e-2)
    engine, optimizer, _, _ = deepspeed.initialize(model=net, optimizer=adam, config=CONFIG)
    told = {"scales": [optimizer.loss_scale], "skipped": []}
    for step in range(12):
        loss = engine(torch.ones(4, 8, dtype=torch.float16)).float().pow(2).mean()
        engine.backward(loss * (float("inf") if step in (4, 9) else 1))
        engine.step()
        told["scales"].append(optimizer.loss_scale)
        told["skipped"].append(not engine.was_step_applied())
    with open(f"{log}.{deepspeed.comm.get_rank()}", "w") as file:
        json.dump(told, file)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
