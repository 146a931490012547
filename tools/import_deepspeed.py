#!/usr/bin/env python3
"""Take a DeepSpeed checkpoint in the universal layout apart, for `strata import`.

    python ds_to_universal.py --input_folder RUN/global_step100 --output_folder RUN/universal   (DeepSpeed's)
    python tools/import_deepspeed.py RUN/universal PARTS
    strata import PARTS --model DIR --config ds_config.json --out SAVE

PARTS gets state.json (steps, samples, loss scaler) and a directory for each of fp32, exp_avg and exp_avg_sq with all parameters in
one model.safetensors, in fp32 and under their own names.  Frozen parameters are in fp32 alone; of those that share a tensor there is one.

Of a run that trained adapters (PEFT's LoRA) there is what was trained alone, named as in an adapter's file, and adapter_config.json, which
PEFT wrote: from --adapter DIR, or beside or above the universal checkpoint, where Trainer has it.

Needs torch, and no DeepSpeed: classes that the files name are read as plain records, and none of their code runs.  One parameter at
a time is in memory.  Layout: DeepSpeed 0.14 to 0.19, deepspeed/checkpoint/ds_to_universal.py; ZeRO stages 1 to 3.
"""
import argparse
import collections
import glob
import io
import json
import math
import os
import pickle
import re
import struct
import sys
import types
import zipfile

import torch

STATES = ("fp32", "exp_avg", "exp_avg_sq")


def fail(sentence):
    sys.exit(f"import_deepspeed: error: {sentence}")


class Record:
    """Stands for an object of a class that is not torch's: what it was made of."""

    def __init__(self, *args, **kwargs):
        self.args = args

    def __setstate__(self, state):
        self.__dict__.update(state if isinstance(state, dict) else {"state": state})


class Unpickler(pickle.Unpickler):
    """Makes tensors and plain containers; everything else becomes a Record."""

    def find_class(self, module, name):
        if module == "collections" and name == "OrderedDict":
            return collections.OrderedDict
        if module == "torch" and (name == "Size" or name.endswith("Storage") or isinstance(getattr(torch, name, None), torch.dtype)):
            return getattr(torch, name)
        if module == "torch.storage" and name.endswith("Storage"):
            return getattr(torch.storage, name)
        if module == "torch._utils" and name.startswith("_rebuild_"):
            return getattr(torch._utils, name)
        if module in ("builtins", "__builtin__") and name in ("set", "frozenset", "slice", "complex", "range", "int", "float", "bool"):
            return {"set": set, "frozenset": frozenset, "slice": slice, "complex": complex, "range": range, "int": int,
                    "float": float, "bool": bool}[name]
        return type(name, (Record,), {})


PICKLE = types.ModuleType("records")
PICKLE.Unpickler = Unpickler
PICKLE.load = lambda file, **kw: Unpickler(file, **kw).load()


CHECKED = set()


def check(path):
    """Of its checksums, at which torch does not look; 0: it was told to make none."""
    if path in CHECKED:
        return
    with zipfile.ZipFile(path) as file:
        for member in file.infolist():
            with file.open(member) if member.CRC != 0 else io.BytesIO() as data:
                while data.read(1 << 20):
                    pass
    CHECKED.add(path)


def read(path):
    try:
        check(path)
        return torch.load(path, map_location="cpu", weights_only=False, mmap=True, pickle_module=PICKLE)
    except FileNotFoundError:
        fail(f"{path}: there is no such file")
    except Exception as error:  # whatever a damaged file leads to
        fail(f"{path}: is damaged, or was not written by torch.save(): {(str(error) or repr(error)).splitlines()[0]}: make the universal "
             "checkpoint again")


def one(pattern, what):
    found = sorted(glob.glob(pattern), key=lambda p: [int(t) if t.isdigit() else t for t in re.split(r"(\d+)", p)])
    if not found:
        fail(f"{pattern}: there is none, so this is not a universal checkpoint ({what}): ds_to_universal.py makes one")
    return found


def values(path, shape):
    """A parameter's state: stages 1 and 2 say its shape, stage 3 has it flat."""
    o = read(path)
    o = o["param"] if isinstance(o, dict) else o
    if not torch.is_tensor(o):
        fail(f"{path}: holds no tensor")
    if shape is not None and o.dim() == 1 and o.numel() == math.prod(shape):
        o = o.reshape(shape)
    return o.detach().to(torch.float32).contiguous()


def write(path, tensors):
    """tensors: name -> (shape, function that gives the values)"""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (shape, _) in tensors.items():
        bytes_ = 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + bytes_]}
        at += bytes_
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".tmp", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name, (shape, get) in tensors.items():
            t = get()
            if tuple(t.shape) != tuple(shape):
                fail(f"{name}: has shape {list(t.shape)} in one file and {list(shape)} in another")
            f.write(t.numpy().astype("<f4", copy=False).tobytes())
    os.replace(path + ".tmp", path)


def frozen(models):
    """Name -> (shape, function): stages 1 and 2 have them whole in every file, stage 3 a part in each."""
    shapes = models[0].get("frozen_param_shapes") or {}
    parts = [m.get("frozen_param_fragments") or {} for m in models]

    def get(name, shape):
        whole = [p[name].detach().to(torch.float32).flatten() for p in parts if name in p]
        if not whole:
            fail(f"{name}: is frozen, and no *_model_states.pt has it")
        flat = whole[0] if whole[0].numel() >= math.prod(shape) else torch.cat(whole)
        if flat.numel() < math.prod(shape):
            fail(f"{name}: has {flat.numel()} frozen values of {math.prod(shape)}")
        return flat[:math.prod(shape)].reshape(shape)

    return {name: (tuple(shape), lambda name=name, shape=tuple(shape): get(name, shape)) for name, shape in shapes.items()}


def adapter_names(names):
    """Name -> that of the same tensor in an adapter's file, or in the model that has it in place of its own."""
    adapters, found = set(), {}
    for name in names:
        at = re.fullmatch(r"base_model\.model\.(.+\.lora_[AB])\.([^.]+)\.weight", name)
        saved = re.fullmatch(r"base_model\.model\.(.+)\.modules_to_save\.([^.]+)\.(weight|bias)", name)
        if at:
            found[name] = f"base_model.model.{at[1]}.weight"
        elif saved:
            found[name] = f"{saved[1]}.{saved[3]}"
        else:
            fail(f"{name}: is trained beside adapters, and is neither LoRA's nor one of modules_to_save")
        adapters.add((at or saved)[2])
    if len(adapters) > 1:
        fail(f"there are several adapters, and a run here has one: {', '.join(sorted(adapters))}")
    return found


def adapter_config(args):
    """The text of adapter_config.json."""
    up = os.path.join(args.universal, os.pardir)
    for place in [args.adapter] if args.adapter else [args.universal, up, os.path.join(up, os.pardir)]:
        path = os.path.join(place, "adapter_config.json")
        if os.path.exists(path):
            with open(path, "rb") as f:
                return f.read()
    fail(f"{args.universal}: the run trained adapters: name the directory of their adapter_config.json with --adapter DIR")


def steps_of(zero, names, optimizer, model):
    """Of the optimizer, which skipped steps do not count in."""
    found = set()
    for name in names:
        path = os.path.join(zero, name, "step.pt")
        if os.path.exists(path):
            o = read(path)
            found.add(int(o["param"] if isinstance(o, dict) else o))
    inner = optimizer.get("optimizer_state_dict")
    for state in (inner or {}).get("state", {}).values():
        if "step" in state:
            found.add(int(state["step"]))
    for group in optimizer.get("param_groups") or []:
        if "step" in group:
            found.add(int(group["step"]))
    if len(found) > 1:
        fail(f"parameters have had different numbers of steps: {sorted(found)}")
    return found.pop() if found else int(model["global_steps"]) - int(model.get("skipped_steps", 0))


def scaler_of(optimizer):
    s = optimizer.get("loss_scaler")
    s = s if isinstance(s, dict) else getattr(s, "__dict__", {})
    if not s.get("dynamic"):
        return None
    return {"scale": float(s["cur_scale"]), "iteration": int(s["cur_iter"]), "last_overflow": int(s["last_overflow_iter"]),
            "hysteresis_left": int(s["cur_hysteresis"])}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("universal", help="a directory that ds_to_universal.py wrote")
    parser.add_argument("parts", help="directory to make")
    parser.add_argument("--adapter", metavar="DIR", help="where PEFT's adapter_config.json is")
    args = parser.parse_args()
    zero = os.path.join(args.universal, "zero")
    models = [read(p) for p in one(os.path.join(args.universal, "*_model_states.pt"), "the model's states are missing")]
    names = sorted(os.path.basename(os.path.dirname(p)) for p in one(os.path.join(zero, "*", "fp32.pt"), "no parameters"))
    if os.path.exists(os.path.join(args.parts, "state.json")):
        fail(f"{args.parts}: is there already")
    shapes = {}
    for group in models[0].get("param_shapes") or []:
        shapes.update({name: tuple(shape) for name, shape in group.items()})
    shared = set()
    for m in models:
        shared.update(m.get("shared_params") or {})
    names = [name for name in names if name not in shared]
    config, called = None, {}
    if any(".lora_A." in name for name in names):
        config = adapter_config(args)
        names = [name for name in names if os.path.exists(os.path.join(zero, name, "exp_avg.pt"))]
        called = adapter_names(names)
    for state in STATES:
        tensors = {}
        for name in names:
            path = os.path.join(zero, name, state + ".pt")
            if not os.path.exists(path):  # of a frozen one: strata import refuses others, by name
                continue
            tensors[called.get(name, name)] = (tuple(values(path, shapes.get(name)).shape),
                                               lambda path=path, name=name: values(path, shapes.get(name)))
        if state == "fp32" and config is None:
            for name, got in frozen(models).items():
                tensors.setdefault(name, got)
        write(os.path.join(args.parts, state, "model.safetensors"), tensors)
    optimizer = read(one(os.path.join(zero, "optimizer_state.pt"), "the optimizer's state is missing")[0])
    model = models[0]
    state = {"format": 1, "source": f"DeepSpeed {model.get('ds_version', '')}".strip(),
             "steps": steps_of(zero, names, optimizer, model), "skipped_steps": int(model.get("skipped_steps", 0)),
             "samples": int(model.get("global_samples", 0)), "loss_scaler": scaler_of(optimizer)}
    if config is not None:
        with open(os.path.join(args.parts, "adapter_config.json"), "wb") as f:
            f.write(config)
    with open(os.path.join(args.parts, "state.json.tmp"), "w") as f:
        json.dump(state, f, indent=2)
        f.write("\n")
    os.replace(os.path.join(args.parts, "state.json.tmp"), os.path.join(args.parts, "state.json"))
    print(f"{args.parts}: {len(names)} parameters after {state['steps']} steps")


if __name__ == "__main__":
    main()
