#!/usr/bin/env python3
"""paged_step.py - trains a Llama of transformers whose weights, state and boundaries are on NVMe, under strata or DeepSpeed.

    paged_step.py make --nvme DIR                   the model's weights, random, as safetensors in DIR/model
    paged_step.py strata --nvme DIR --steps 5       from_pretrained() within zero.Init, then steps; one JSON line
    paged_step.py deepspeed --nvme DIR --steps 5    the same script with DeepSpeed itself

The line has seconds of each step, peaks of resident memory (after imports, loading, making the engine, and steps), bytes that the
process has read and written, and of strata the bounds of its plan by the layers' measured times.
"""

import argparse
import json
import os
import re
import sys
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

SIZES = {
    "1.1b": {"vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
             "num_attention_heads": 32, "num_key_value_heads": 4},
    "tiny": {"vocab_size": 1000, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4,
             "num_attention_heads": 4, "num_key_value_heads": 2},
}


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("how", choices=["make", "strata", "deepspeed"])
    parser.add_argument("--nvme", required=True, help="a directory on the drive: 16 bytes a parameter, and 2 for the model")
    parser.add_argument("--size", choices=list(SIZES), default="1.1b")
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--micros", type=int, default=1, help="micro-batches of one sequence in a step")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--device-memory", default="1152MiB", help="strata's arena of the device, which is the CPU")
    parser.add_argument("--host-memory", default="384MiB", help="strata's arena of the host")
    return parser.parse_args()


def peak():
    """MiB."""
    with open("/proc/self/status", encoding="ascii") as file:
        return int(re.search(r"VmHWM:\s+(\d+)", file.read())[1]) >> 10


def moved():
    """Bytes that this process has read from and written to drives."""
    with open("/proc/self/io", encoding="ascii") as file:
        rows = dict(line.split(": ") for line in file.read().splitlines())
    return int(rows["read_bytes"]), int(rows["write_bytes"])


def config_of(args):
    offload = {"device": "nvme", "nvme_path": args.nvme}
    zero = {"stage": 3, "offload_optimizer": dict(offload), "offload_param": dict(offload)}
    if args.how == "deepspeed":
        for section in zero["offload_optimizer"], zero["offload_param"]:
            section["pin_memory"] = False
        vocab = SIZES[args.size]["vocab_size"] * SIZES[args.size]["hidden_size"]
        zero["offload_param"].update(buffer_count=6, buffer_size=vocab + (1 << 20))
        zero["sub_group_size"] = 50_000_000
        zero["stage3_max_live_parameters"] = zero["stage3_prefetch_bucket_size"] = 50_000_000
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": args.micros,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.1}},
        "zero_optimization": zero,
    }
    if args.how == "deepspeed":
        config["aio"] = {"block_size": 1048576, "queue_depth": 32, "intra_op_parallelism": 2, "single_submit": False,
                         "overlap_events": True}
    else:
        config["strata"] = {"device_memory": args.device_memory, "host_memory": args.host_memory, "cache": 0}
    return config


def watch_plans():
    """Plans of engines that are made, with the machine's rates."""
    import ctypes

    from strata import layers
    from strata._report import abi

    plans = []

    class Measured(layers.Plan):
        def __init__(self, model, machine):
            super().__init__(model, machine)
            if self.refused is None:
                abi().strata_plan_measure(self.pointer)
                plans.append(self)

    layers.Plan = Measured

    def told():
        info = abi().make("strata_plan_info")
        abi().strata_plan_get_info(plans[-1].pointer, ctypes.byref(info))
        return info

    return told


def main():
    args = parse_args()
    if args.how == "strata":
        from strata import deepspeed

        deepspeed.install()
        plan = watch_plans()
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    place = os.path.join(args.nvme, "model")
    if args.how == "make":
        torch.set_default_dtype(torch.bfloat16)
        LlamaForCausalLM(LlamaConfig(**SIZES[args.size])).save_pretrained(place, max_shard_size="1GB")
        return
    import deepspeed
    from transformers.integrations import HfDeepSpeedConfig

    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29572")
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
    config = config_of(args)
    kept = HfDeepSpeedConfig(config)  # lives until the model is made: from_pretrained() asks for it
    told = {"engine": args.how, "size": args.size, "tokens": args.seq_len * args.micros, "peak_mib": {"imports": peak()}}
    begin = time.perf_counter()
    model = LlamaForCausalLM.from_pretrained(place, dtype=torch.bfloat16)
    model.config.use_cache = False
    told["parameters"] = sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters())
    told["peak_mib"]["loaded"] = peak()
    assert kept.is_zero3()
    batches = torch.randint(0, SIZES[args.size]["vocab_size"], (args.steps * args.micros, 1, args.seq_len))
    if args.how == "strata":
        from strata.torch import Engine

        engine = Engine(model, config, boundary_bytes=2 * args.seq_len * model.config.hidden_size)
    else:
        model.gradient_checkpointing_enable()
        engine = deepspeed.initialize(model=model, config=config)[0]
    engine.train()
    told["seconds_to_load"] = time.perf_counter() - begin
    told["peak_mib"]["engine"] = peak()
    told["steps"] = []
    for step in range(args.steps):
        before, start = moved(), time.perf_counter()
        row = {"forward": 0.0, "backward": 0.0, "update": 0.0, "loss": 0.0}
        for micro in range(args.micros):
            batch = batches[step * args.micros + micro]
            times = [time.perf_counter()]
            loss = engine(input_ids=batch, labels=batch).loss
            times.append(time.perf_counter())
            engine.backward(loss)
            times.append(time.perf_counter())
            engine.step()
            times.append(time.perf_counter())
            for part, one, other in zip(("forward", "backward", "update"), times, times[1:]):
                row[part] += other - one
            row["loss"] += float(loss.detach()) / args.micros
        row["step"] = time.perf_counter() - start
        row["read"], row["write"] = (after - was for was, after in zip(before, moved()))
        row["peak_mib"] = peak()
        if args.how == "strata":
            info = plan()
            row["schedule_bound"], row["hardware_bound"] = info.schedule_bound_seconds, info.hardware_bound_seconds
            row["bound_by"] = (info.bound_by or b"").decode()
        told["steps"].append(row)
        print(f"step {step}: {row}", file=sys.stderr, flush=True)
    told["peak_mib"]["steps"] = peak()
    print(json.dumps(told))
    os._exit(0)  # what DeepSpeed leaves behind at the interpreter's end is not measured


if __name__ == "__main__":
    main()
