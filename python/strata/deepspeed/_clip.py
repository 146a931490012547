"""clip_grad_norm_ of PyTorch and Accelerate: told of an engine's parameters it would see no gradients, and clip nothing."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch

from .runtime.engine import engines_of

_watched: list[Any] = []


def _asking(clip: Callable[..., Any]) -> Callable[..., Any]:
    """Those of an engine are the engine's to clip: DeepSpeedEngine.clip_grad_norm_() says so where it will not."""
    signature = inspect.signature(clip)

    @functools.wraps(clip)
    def clip_grad_norm_(*values: Any, **named: Any) -> Any:
        bound = signature.bind(*values, **named)
        bound.apply_defaults()
        given = bound.arguments["parameters"]
        bound.arguments["parameters"] = given = [given] if isinstance(given, torch.Tensor) else list(given)
        for engine in engines_of(given):
            return engine.clip_grad_norm_(bound.arguments["max_norm"], bound.arguments["norm_type"])
        return clip(*bound.args, **bound.kwargs)

    return clip_grad_norm_


def watch() -> None:
    """Those that have been imported; each once."""
    accelerate = sys.modules.get("accelerate")
    for owner in filter(None, (torch.nn.utils, getattr(accelerate, "Accelerator", None))):
        if owner not in _watched:
            owner.clip_grad_norm_ = _asking(owner.clip_grad_norm_)
            _watched.append(owner)
