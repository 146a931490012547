"""A training script for DeepSpeed, as its tutorials have them: nothing in it knows of strata."""

import argparse
import json

import deepspeed
import torch


class Digits(torch.utils.data.Dataset):
    """Noisy rows of ten kinds."""

    def __init__(self, rows):
        made = torch.Generator().manual_seed(0)
        self.labels = torch.randint(0, 10, (rows,), generator=made)
        kinds = torch.randn(10, 24, generator=made)
        self.inputs = kinds[self.labels] + 0.3 * torch.randn(rows, 24, generator=made)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.inputs[index], self.labels[index]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = torch.nn.Linear(24, 48)
        self.out = torch.nn.Linear(48, 10)

    def forward(self, inputs):
        return self.out(torch.nn.functional.relu(self.hidden(inputs)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--told", default="log.json")
    parser = deepspeed.add_config_arguments(parser)
    args = parser.parse_args()

    deepspeed.init_distributed()
    torch.manual_seed(7)
    net = Net()
    parameters = filter(lambda p: p.requires_grad, net.parameters())
    engine, _, loader, _ = deepspeed.initialize(args=args, model=net, model_parameters=parameters, training_data=Digits(640))
    criterion = torch.nn.CrossEntropyLoss()
    losses, norms = [], []
    for inputs, labels in loader:
        inputs, labels = inputs.to(engine.device), labels.to(engine.device)
        loss = criterion(engine(inputs), labels)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
        if engine.was_step_applied():
            norms.append(float(engine.get_global_grad_norm()))
        if engine.global_steps == args.steps:
            break
    sums = [parameter.double().sum().item() for parameter in engine.module.parameters()]
    with open(f"{args.told}.{deepspeed.comm.get_rank()}", "w") as file:
        told = {"losses": losses, "norms": norms, "sums": sums, "local_rank": args.local_rank}
        json.dump({**told, "ranks": deepspeed.comm.get_world_size()}, file)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
