"""What an engine hangs into modules, parameters and PyTorch: gradients, weights that are waited for, clipping."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .engine import Engine


class Hook:
    """Lies in parameters and modules, which outlive the engine, and are copied and pickled without it."""

    def __init__(self, engine: Engine, layers: frozenset[int] | None) -> None:
        self._engine, self._layers = weakref.ref(engine), layers

    def __call__(self, of: torch.nn.Module | torch.nn.Parameter, *_: Any) -> None:
        engine = self._engine()
        if engine is None:
            return
        if isinstance(of, torch.nn.Parameter):
            engine._gradient(of)
        else:
            engine.await_weights(self._layers)

    def __reduce__(self) -> tuple[Any, ...]:
        return _nothing, ()


def _nothing() -> Any:
    return _ignore


def _ignore(*_: Any) -> None:
    """A hook of a copy."""


class Overlap:
    """Modules wait for their weights: the whole one begins the step, or for evaluation makes the update.

    They wait before other hooks, of which weight_norm() and spectral_norm() compute with weights.
    """

    def __init__(self, engine: Engine) -> None:
        self.pending = False  # an update
        self._awaited: set[int] = set()  # layers whose weights are those of the step under way
        self._early: set[int] = set()  # layers that are computed with though their modules are not called
        self._racing = False  # the step under way began with an update that was pending
        at = self._at = {k.parameter: t.layer for k, t in zip(engine._kept, engine._layers.tensors)}
        module = engine.module
        everything = Hook(engine, frozenset(at.values()))
        for register in (module.register_state_dict_pre_hook, module.register_load_state_dict_pre_hook):
            engine._hooks.append(register(everything))  # type: ignore[no-untyped-call]
        for inner in module.modules():
            layers = frozenset(at[p] for p in inner._parameters.values() if p in at)
            if layers:
                engine._hooks.append(inner.register_forward_pre_hook(Hook(engine, layers), prepend=True))
        engine._hooks.append(module.register_forward_pre_hook(Hook(engine, None), prepend=True))

    def begin(self) -> None:
        """A step begins."""
        self._awaited, self._racing = set(), self.pending

    def await_weights(self, engine: Engine, layers: frozenset[int] | None) -> None:
        """Of these layers; None: whatever the module as a whole needs."""
        if not engine._inside:
            if layers is None and engine.module.training and torch.is_grad_enabled():
                engine._begin()
                self.await_weights(engine, frozenset(self._early))
            elif self.pending:
                engine.flush()
        elif layers:
            for layer in layers - self._awaited:
                engine._layers.use(engine._layers.FORWARD, layer)
                self._awaited.add(layer)

    def await_all(self, engine: Engine) -> None:
        """Of a step that goes on where another one was given up."""
        self.await_weights(engine, frozenset(self._at.values()))

    def check(self, parameter: torch.nn.Parameter, name: str) -> None:
        """It has a gradient: whether its layer was waited for."""
        if self._at[parameter] in self._awaited:
            return
        self._early |= set(self._at.values()) - self._awaited
        if self._racing:
            raise RuntimeError(
                f"{name} was read while it was updated, since its module was not called: "
                "this step is dropped, and later ones wait"
            )


def watch_clipping(engines: Iterable[Engine]) -> None:
    """PyTorch's clip_grad_norm_ would find no gradients, and clip nothing, without a word."""
    clip = torch.nn.utils.clip_grad_norm_
    if hasattr(clip, "_strata_watches"):
        return

    @functools.wraps(clip)
    def clip_grad_norm_(parameters: Any, max_norm: float, norm_type: float = 2.0, *more: Any, **named: Any) -> torch.Tensor:
        given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        for engine in engines:
            if any(p in engine._by_parameter for p in given):
                return engine.clip_grad_norm_(max_norm, norm_type)
        return clip(given, max_norm, norm_type, *more, **named)

    clip_grad_norm_._strata_watches = True  # type: ignore[attr-defined]
    torch.nn.utils.clip_grad_norm_ = clip_grad_norm_
