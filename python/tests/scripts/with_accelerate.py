"""A training loop for Accelerate, as its tutorials have them: nothing in it knows of DeepSpeed or of strata."""

import json
import os
import sys

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs, set_seed


def main(log, where):
    launched = "LOCAL_RANK" in os.environ and not torch.cuda.is_available()
    handlers = [InitProcessGroupKwargs(backend="gloo")] if launched else []  # on CPUs Accelerate chooses none
    accelerator = Accelerator(gradient_accumulation_steps=2, kwargs_handlers=handlers)
    set_seed(11)
    model = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.Tanh(), torch.nn.Linear(32, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=10)
    made = torch.Generator().manual_seed(12)
    rows = [(torch.randn(10, generator=made), torch.randn(10, generator=made)) for _ in range(160)]
    loader = torch.utils.data.DataLoader(rows, batch_size=8, shuffle=False)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    losses, rates = [], []
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()).mean().item())
        rates.append(scheduler.get_last_lr()[0])

    whole = [one.clone() for one in accelerator.get_state_dict(model).values()]
    accelerator.save_state(where)
    with torch.no_grad():
        accelerator.unwrap_model(model)[0].weight.zero_()
    accelerator.load_state(where)
    back = accelerator.get_state_dict(model).values()
    same = all(torch.equal(one, other) for one, other in zip(whole, back))
    told = {"losses": losses, "rates": rates, "same": same, "kind": str(accelerator.distributed_type)}
    with open(f"{log}.{accelerator.process_index}", "w") as file:
        json.dump({**told, "ranks": accelerator.num_processes}, file)
    accelerator.end_training()


if __name__ == "__main__":
    main(*sys.argv[1:])
