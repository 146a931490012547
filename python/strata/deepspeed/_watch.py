"""What is changed in others' code: without it gradients would not be clipped, and Trainer could not train twice."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

import torch

from .._handles import Named
from .runtime.engine import DeepSpeedEngine, engines_of

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


def _fresh(wrap: Callable[..., Any]) -> Callable[..., Any]:
    """Trainer.train() has its engine destroyed first, and then takes it for one that trains: it gets the module again."""

    @functools.wraps(wrap)
    def _wrap_model(trainer: Any, model: Any, *values: Any, **named: Any) -> Any:
        ended = isinstance(model, DeepSpeedEngine) and model.ended
        return wrap(trainer, model.module if ended else model, *values, **named)

    return _wrap_model


def _naming(init: Callable[..., None]) -> Callable[..., None]:
    """What Accelerate and Trainer read from a file keeps the file's name."""

    @functools.wraps(init)
    def __init__(settings: Any, config_file_or_dict: Any) -> None:
        init(settings, config_file_or_dict)
        if isinstance(config_file_or_dict, (str, os.PathLike)) and os.path.exists(config_file_or_dict):
            settings.config = Named.of(settings.config, config_file_or_dict)

    return __init__


def watch() -> None:
    """Those that have been imported; each once."""
    for module, kind, name, changed in (
        ("torch.nn", "utils", "clip_grad_norm_", _asking),
        ("accelerate", "Accelerator", "clip_grad_norm_", _asking),
        ("transformers.trainer", "Trainer", "_wrap_model", _fresh),
        ("accelerate.utils.deepspeed", "HfDeepSpeedConfig", "__init__", _naming),
    ):
        owner = getattr(sys.modules.get(module), kind, None)
        if owner is not None and owner not in _watched:
            setattr(owner, name, changed(getattr(owner, name)))
            _watched.append(owner)
