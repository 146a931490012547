"""client-N.pt: what rank N saves beside a checkpoint of strata's, and whether it is what it should be.

random, buffers, names     tensors and plain values, which are made without running anything; buffers and names are rank 0's
optimizer, client_state    packed apart, as bytes: groups and the caller's own, which may have objects of any class
"""

from __future__ import annotations

import copy
import ctypes
import hashlib
import io
import json
import pickle
import random
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .._abi import encoded
from .._calls import Handle, blocked
from .._report import abi
from ..errors import Error, reading
from ..layers import memory

_PACKED = ("optimizer", "client_state")
_NEEDS_TRUST = re.compile(
    r"GLOBAL (\S+) was not an allowed|via `add_safe_globals`,? but got (.+)|"
    r"reduce for unrecognized function (.+)|(\S+) must be imported"
)


def packed(name: str, value: Any) -> torch.Tensor:
    """What write_beside() takes of the caller's own; a refusal where it cannot be pickled."""
    inner = io.BytesIO()
    try:
        torch.save(value, inner)
    except MemoryError:
        raise
    except Exception as error:
        told = f"{type(error).__name__}: {error}".partition("\n")[0][:300]
        remedy = "leave out functions, locks, open files and the like: tensors and plain values can always be saved"
        raise Error("E_INPUT", f"the {name} cannot be saved ({told})", exit_code=2, key=name, remedy=remedy) from error
    return torch.frombuffer(inner.getbuffer(), dtype=torch.uint8)


def write_beside(place: Path, rank: int, step: int, beside: Mapping[str, Any]) -> dict[Path, bytes | memoryview]:
    """The files and what they have."""
    file = io.BytesIO()
    torch.save(dict(beside), file)
    told = {"step": step, "sha256": hashlib.sha256(file.getbuffer()).hexdigest()}
    path = place / f"client-{rank}.pt"
    return {path: file.getbuffer(), path.with_suffix(".json"): json.dumps(told).encode()}


def manifest_of(checkpoint: Path) -> Any:
    """Of one of strata's, whose checksum is right."""
    path = checkpoint / "manifest.json"
    with reading(path):
        made = json.loads(path.read_bytes())
    opened = abi().handle("strata_checkpoint")
    blocked(lambda: abi().strata_checkpoint_open(ctypes.byref(opened), encoded(checkpoint)))
    Handle(opened, "strata_checkpoint_close").close()
    return made


def told_of(checkpoint: Path, what: str) -> Any:
    """What a checkpoint says of its run."""
    return manifest_of(checkpoint)["run"][what]


def read_beside(place: Path, rank: int) -> dict[str, Any]:
    """What a rank has saved, checked; of more ranks than have saved the others take rank 0's."""
    manifest = manifest_of(place / "strata")
    path = place / f"client-{rank}.pt"
    trained, ranks = manifest["run"]["step"], int(manifest["run"]["world"])
    if rank >= ranks:
        path = place / "client-0.pt"
    with reading(path):
        data = path.read_bytes()
    with reading(path.with_suffix(".json")):
        told = json.loads(path.with_suffix(".json").read_bytes())
        step, wanted = told["step"], told["sha256"]
    if hashlib.sha256(data).hexdigest() != wanted:
        raise Error("E_CORRUPT", f"{path} is damaged: its checksum differs", exit_code=4, remedy="take another checkpoint")
    if trained != step:
        raise Error("E_CORRUPT", f"{path} is of step {step}, and {place / 'strata'} of step {trained}", exit_code=4)
    with reading(path):
        made = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        _check(made)
    return {**made, "path": path, "manifest": manifest}


def _check(made: Any) -> None:
    """The kinds of all that is not packed."""
    for name, kind in {"random": dict, "buffers": dict, "names": dict, **dict.fromkeys(_PACKED, torch.Tensor)}.items():
        if not isinstance(made[name], kind):
            raise TypeError(f"{name} is {type(made[name]).__name__}")
    if any(made[name].dtype != torch.uint8 or made[name].dim() != 1 for name in _PACKED):
        raise TypeError("what is packed is no bytes")
    for name, buffer in made["buffers"].items():
        plain = isinstance(name, str) and isinstance(buffer, torch.Tensor)
        if not plain or buffer.layout != torch.strided or buffer.is_meta:
            raise TypeError(f"buffer {name} is no plain tensor")
    for name, own in made["names"].items():
        if not isinstance(name, str) or not (isinstance(own, str) or (own is None and name in made["buffers"])):
            raise ValueError(f"{name} is neither a parameter nor a buffer that is there")


def unpacked(beside: Mapping[str, Any], name: str, trusted: bool) -> Any:
    """What is packed apart.  trusted: objects of any class, whose making runs what the file says."""
    path, packed = beside["path"], beside[name]
    inner = io.BytesIO(memory(packed.data_ptr(), packed.numel(), packed))
    try:
        return torch.load(inner, weights_only=not trusted)
    except pickle.UnpicklingError as error:
        needs = _NEEDS_TRUST.search(str(error))
        if trusted or needs is None:  # of what is blocked, as of os, load(trusted=True) is no advice
            raise Error("E_CORRUPT", f"{path} is damaged: its {name} cannot be made", detail=str(error), exit_code=4) from error
        raise ValueError(
            f"{path}: its {name} has objects that are more than tensors and plain values: load(trusted=True) makes them, "
            f"which runs what the file says ({next(filter(None, needs.groups()))})"
        ) from None
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        raise Error("E_INPUT", f"{path}: its {name} cannot be made here ({told})", exit_code=2) from error


def random_states() -> dict[str, Any]:
    states = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if "numpy" in sys.modules:
        name, keys, *more = sys.modules["numpy"].random.get_state()
        states["numpy"] = (name, keys.tolist(), *more)  # without objects of numpy's
    return states


def check_random_states(beside: Mapping[str, Any]) -> None:
    """Whether set_random_states() takes them: copies do."""
    states = beside["random"]
    with reading(beside["path"]):
        random.Random().setstate(states["python"])
        torch.Generator().set_state(states["torch"])
        if "numpy" in states and "numpy" in sys.modules:
            copy.deepcopy(sys.modules["numpy"].random.set_state.__self__).set_state(states["numpy"])


def set_random_states(states: Mapping[str, Any]) -> None:
    random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    if "numpy" in states and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(states["numpy"])
