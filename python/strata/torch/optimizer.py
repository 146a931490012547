"""The optimizer of an engine, as PyTorch's schedulers and trainers see one."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .engine import Engine

_RULES = {"AdamW": "AdamW", "Adam": "Adam", "SGD": "SGD", "Adagrad": "Adagrad", "Lion": "Lion"}
_MOMENTA = ("betas", "momentum")  # a schedule may change them
_PARAMS = ("eps", "dampening", "nesterov")
_ABSENT = ("maximize", "amsgrad", "lr_decay")


class Optimizer(torch.optim.Optimizer):
    """Rates, decays, betas and momentum of param_groups are those of each step.

    Moments and masters are the engine's, and Engine.save()'s.
    """

    def __init__(self, engine: Engine, groups: list[dict[str, Any]], client: torch.optim.Optimizer | None) -> None:
        """client: whose groups these are, so that its schedulers reach them."""
        self._engine = weakref.ref(engine)
        self._client = client
        rule = engine.settings["optimizer"]["params"]
        # The configuration's schedule says betas, where it has one.
        self._fixed = {name: rule[name] for name in (*_PARAMS, *(_MOMENTA if engine._scheduled else ())) if name in rule}
        momenta = {name: rule[name] for name in _MOMENTA if name in rule}
        super().__init__([{**group} for group in groups], {"lr": rule["lr"], "weight_decay": 0.0, **momenta})
        if client is not None:
            self.param_groups = client.param_groups

    def check(self) -> None:
        """What the engine computes with for the run may not change: that would be without effect."""
        self._check(self.param_groups)

    def _check(self, groups: Iterable[dict[str, Any]]) -> None:
        for group in groups:
            for name, value in self._fixed.items():
                given = group.get(name, value)
                if (list(given) if isinstance(given, tuple) else given) != value:
                    raise ValueError(f"{name} of {given} in a group: an engine keeps {value} for the run")

    def betas(self) -> dict[str, list[float]]:
        """Of each group, as Layers.end() takes them."""
        return self._betas(self.param_groups)

    def _betas(self, groups: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
        if "betas" in self.defaults:
            pairs = [group.get("betas", self.defaults["betas"]) for group in groups]
            return {"beta1": [float(pair[0]) for pair in pairs], "beta2": [float(pair[1]) for pair in pairs]}
        if "momentum" in self.defaults:
            return {"beta1": [float(group.get("momentum", self.defaults["momentum"])) for group in groups]}
        return {}

    def stepped(self) -> None:
        """As torch's schedulers want to be told."""
        for known in (self, self._client):
            if known is not None:
                known._opt_called = True  # type: ignore[attr-defined]

    def _of(self) -> Engine:
        engine = self._engine()
        if engine is None:
            raise RuntimeError("the engine of this optimizer is gone")
        return engine

    @property
    def overflow(self) -> bool:
        """Whether the last step was skipped."""
        return self._of().overflow

    @property
    def loss_scale(self) -> float:
        """The next step's, as DeepSpeed has it; Step.loss_scale is the last one's."""
        return self._of().loss_scale

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Engine.step()."""
        if closure is not None:
            raise ValueError("an engine's optimizer takes no closure: call engine.backward(loss) and step()")
        self._of().step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Of another backward than the engine's, whose gradients begin at zero in each step."""
        super().zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """Of the groups, without state."""
        return {"state": {}, "param_groups": super().state_dict()["param_groups"]}

    def check_state(self, state_dict: dict[str, Any]) -> None:
        """Whether load_state_dict() takes it, and step() what is there then."""
        saved = state_dict["param_groups"]
        if [len(group["params"]) for group in saved] != [len(group["params"]) for group in self.param_groups]:
            raise ValueError("the state is of other groups of parameters than this optimizer's")
        merged = [{**group, **values} for group, values in zip(self.param_groups, saved)]
        self._check(merged)
        self._betas(merged)
        for group in merged:
            for name in ("lr", "weight_decay"):
                if not 0 <= float(group[name]) < math.inf:
                    raise ValueError(f"{name} of {group[name]} in a group")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.check_state(state_dict)
        for group, values in zip(self.param_groups, state_dict["param_groups"]):
            group.update({name: value for name, value in values.items() if name != "params"})


def groups_of(parameters: Iterable[Any] | None, module: torch.nn.Module) -> list[dict[str, Any]]:
    """Parameter groups as torch.optim takes them; None: one, of all that need a gradient."""
    given: list[Any] = [p for p in module.parameters() if p.requires_grad] if parameters is None else list(parameters)
    if not given:
        raise ValueError("nothing is trained: no parameter needs a gradient")
    groups = given if isinstance(given[0], dict) else [{"params": given}]
    made = []
    for group in groups:
        params = group["params"]
        params = [params] if isinstance(params, torch.Tensor) else [p[1] if isinstance(p, tuple) else p for p in params]
        made.append({**group, "params": params})
    known = set(module.parameters())
    for one in (p for group in made for p in group["params"] if p not in known):
        raise ValueError(f"a parameter of shape {tuple(one.shape)} is to be trained that is none of the model's")
    return made


def rule_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The configuration's "optimizer" of one of PyTorch's, or of strata.optim's."""
    rule = next((kind.__name__ for kind in type(optimizer).__mro__ if kind.__name__ in _RULES), None)
    moments = getattr(optimizer, "_moments", "fp32")
    if rule is None:
        raise ValueError(f"{type(optimizer).__name__} is none of {', '.join(_RULES)}, which strata has")
    first = optimizer.param_groups[0]
    for group in optimizer.param_groups:
        for name in (*_PARAMS, *_ABSENT):
            if group.get(name) != first.get(name) or (name in _ABSENT and group.get(name)):
                raise ValueError(f"strata has no {name} of {group.get(name)} in a group of {type(optimizer).__name__}")
    values = {name: first[name] for name in (*_MOMENTA, *_PARAMS) if name in first}
    if rule in ("Adam", "AdamW"):  # by itself Adam means AdamW in a configuration
        rule = {"ADAM": "Adam", "ADAMW": "AdamW"}.get(getattr(optimizer, "rule", ""), rule)
        values["adam_w_mode"] = rule == "AdamW" or bool(first.get("decoupled_weight_decay"))
    if moments == "bf16":
        values["fp32_optimizer_states"] = False
    elif moments != "fp32":
        raise ValueError(f"an engine's moments of {moments} are asked for by the configuration: strata.moments")
    return {"type": rule, "params": {"lr": float(first["lr"]), "weight_decay": float(first["weight_decay"]), **values}}
