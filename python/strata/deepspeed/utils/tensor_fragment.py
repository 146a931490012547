"""deepspeed.utils.tensor_fragment: masters, moments and gradients of one parameter, wherever they are, on every rank."""

from __future__ import annotations

import torch

from ...torch.held import held
from .._install import absent, missing
from ..runtime.engine import DeepSpeedEngine, engines_of

__getattr__ = missing(__name__)

_PLANES = {"exp_avg": "MOMENT1", "exp_avg_sq": "MOMENT2", "momentum_buffer": "MOMENT1", "sum": "MOMENT1"}


def _engine_of(param: torch.nn.Parameter) -> DeepSpeedEngine | None:
    return next((engine for engine in engines_of([param]) if param in engine._by_parameter), None)


def _read(param: torch.nn.Parameter, plane: str) -> torch.Tensor | None:
    engine = _engine_of(param)
    if engine is None or (plane != "WEIGHT" and engine._by_parameter[param].group is None):
        return None
    made = torch.empty(param.shape, dtype=torch.float32)
    with held(engine):
        engine.follow(everything=False)
        engine._layers.read(engine._by_parameter[param].index, plane, made.data_ptr())
    return made


def _write(param: torch.nn.Parameter, value: torch.Tensor, plane: str) -> None:
    engine = _engine_of(param)
    if engine is None:
        raise ValueError(f"a parameter of shape {tuple(param.shape)} is of no engine")
    if value.shape != param.shape:
        raise ValueError(f"a value of shape {tuple(value.shape)} for a parameter of {tuple(param.shape)}")
    given = value.detach().to(torch.float32).contiguous()
    with held(engine):
        engine._layers.write(engine._by_parameter[param].index, plane, given.data_ptr())
        engine._saves.changed()


def _plane(name: str) -> str:
    if name not in _PLANES:
        raise ValueError(f"{name} is none of {', '.join(_PLANES)}")
    return _PLANES[name]


def safe_get_full_fp32_param(param: torch.nn.Parameter) -> torch.Tensor | None:
    """A copy of the master; None: no engine has it."""
    return _read(param, "WEIGHT")


def safe_get_full_optimizer_state(param: torch.nn.Parameter, optim_state_key: str) -> torch.Tensor | None:
    """A copy of a moment, exp_avg or exp_avg_sq; None: no engine trains it."""
    return _read(param, _plane(optim_state_key))


def safe_get_full_grad(param: torch.nn.Parameter) -> torch.Tensor | None:
    """A copy of the step's sum so far, unscaled; None: no step is under way."""
    engine = _engine_of(param)
    if engine is None or not engine._inside:
        return None
    if engine.world_size > 1 or engine._by_parameter[param].away is not None:
        raise absent("safe_get_full_grad() of several ranks, or of layers that page", NotImplementedError)
    return engine._sums[param] / engine._scale if param in engine._sums else None


def safe_set_full_fp32_param(param: torch.nn.Parameter, value: torch.Tensor) -> None:
    """Sets master and weight."""
    _write(param, value, "WEIGHT")


def safe_set_full_optimizer_state(param: torch.nn.Parameter, value: torch.Tensor, optim_state_key: str) -> None:
    _write(param, value, _plane(optim_state_key))
