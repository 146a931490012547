"""PyTorch's optimizers with strata's kernels: AdamW, Adam, Lion, Adagrad, SGD (docs/python.md).

    optimizer = strata.optim.AdamW(model.parameters(), lr=1e-4)     # in the place of torch.optim.AdamW

p.grad is PyTorch's until step(), which reads it, clips nothing, and skips parameters that have none, as PyTorch does.  After
step() nothing is pending.  Masters of 16-bit parameters are kept at full precision, and moments in fp32, bf16 or 8 bits.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeAlias

import torch

from ._calls import Handle, blocked
from ._report import abi

Params: TypeAlias = Iterable[Any]

_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
_LAYOUTS = {torch.float32: "F32", torch.bfloat16: "SPLIT", torch.float16: "FULL"}
_ABSENT = ("maximize", "amsgrad", "lr_decay")
_MOMENTS = {"fp32": torch.float32, "bf16": torch.bfloat16, "8bit": torch.uint8}


class _Optimizer(torch.optim.Optimizer):
    """What the rules have in common.  A parameter's state is PyTorch's: "step", and moments by PyTorch's names."""

    rule: ClassVar[str]
    moment_names: ClassVar[tuple[str, ...]]
    settings: ClassVar[dict[str, str]]  # of a group, and their members in struct strata_optim_config

    def __init__(self, params: Params, defaults: dict[str, Any], device: str, moments: str, threads: int) -> None:
        if device != "cpu":
            raise ValueError(f'device is "cpu", where state lies in main memory, not {device!r}')
        if moments not in _MOMENTS:
            raise ValueError(f"moments is one of {', '.join(_MOMENTS)}, not {moments!r}")
        self._moments = moments
        self._threads = threads
        self._handle: Handle | None = None
        self._told: dict[int, tuple[Any, ...]] = {}  # what the library knows of each group
        self._rows: dict[torch.Tensor, tuple[int, Any]] = {}  # struct strata_optim_tensor of each, for data at an address
        self._pack = int(abi().constant("STRATA_OPTIM_PACK"))
        super().__init__(params, defaults)
        self._tell_groups()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._handle, self._told, self._rows = None, {}, {}

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: self.__dict__[name] for name in ("_moments", "_threads", "_pack")}
        return {**super().__getstate__(), **kept}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Before the first step."""
        if self.state:
            raise ValueError("a group of parameters is added before the first step: make a new optimizer")
        most = int(abi().constant("STRATA_OPTIM_GROUPS"))
        if len(self.param_groups) == most:
            raise ValueError(f"an optimizer has at most {most} groups of parameters")
        super().add_param_group(param_group)
        for parameter in self.param_groups[-1]["params"]:
            _check(parameter)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._tell_groups()
        by_step: dict[int, list[tuple[torch.Tensor, torch.Tensor, Any]]] = {}  # with the gradient, which lives as long
        position = 0
        for index, group in enumerate(self.param_groups):
            for parameter in group["params"]:
                if parameter.grad is not None:
                    grad = _gradient(parameter)
                    row = self._row(parameter, grad, index, position)
                    by_step.setdefault(self.state[parameter]["step"], []).append((parameter, grad, row))
                position += -(-parameter.numel() // self._pack) * self._pack
        if by_step:
            blocked(lambda: self._update(by_step))  # all of it, also after Ctrl-C
        return loss

    def _update(self, by_step: dict[int, list[tuple[torch.Tensor, torch.Tensor, Any]]]) -> None:
        handle = self._handle_here()
        for count, members in by_step.items():
            tensors = (abi().struct("strata_optim_tensor") * len(members))(*(row for _, _, row in members))
            if abi().strata_optim_get_step(handle.pointer) != count:
                abi().strata_optim_set_step(handle.pointer, count)
            abi().strata_optim_step(handle.pointer, tensors, len(members), 1.0, None)
            for parameter, _, _ in members:
                torch.autograd.graph.increment_version(parameter)
                self.state[parameter]["step"] = count + 1

    # --- the library's side ---

    def _config(self, group: dict[str, Any]) -> Any:
        config = abi().make("strata_optim_config")
        abi().strata_optim_defaults(ctypes.byref(config), abi().value(f"STRATA_{self.rule}"))
        for name, value in self._values(group):
            setattr(config, name, value)
        config.threads = self._threads
        return config

    def _values(self, group: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
        found: list[tuple[str, Any]] = []
        for name, member in self.settings.items():
            if name == "betas":
                found += [("beta1", float(group[name][0])), ("beta2", float(group[name][1]))]
            else:
                found.append((member, group[name] if isinstance(group[name], bool) else float(group[name])))
        return tuple(found)

    def _handle_here(self) -> Handle:
        """The library's optimizer; a child of fork() and a copy make their own."""
        if self._handle is None or self._handle.process != os.getpid():
            config = self._config(self.param_groups[0])

            def work() -> Handle:
                opened = abi().handle("strata_optim")
                abi().strata_optim_create(ctypes.byref(opened), ctypes.byref(config))
                return Handle(opened, "strata_optim_destroy")

            self._handle, self._told = blocked(work), {}
        return self._handle

    def _tell_groups(self) -> None:
        """Rates and decays are looked at in each step: a scheduler, or anyone, may have changed them."""
        handle = self._handle_here()
        for index, group in enumerate(self.param_groups):
            values = self._values(group)
            if self._told.get(index) != values:
                abi().strata_optim_set_group(handle.pointer, index, ctypes.byref(self._config(group)))
                self._told[index] = values

    # --- a parameter's state ---

    def _begin(self, parameter: torch.Tensor) -> dict[str, Any]:
        state: dict[str, Any] = {"step": 0, "form": _form(parameter)}
        for name in self.moment_names:
            state[name] = self._zeros(parameter)
        if parameter.dtype == torch.bfloat16:
            state["low_half"] = torch.zeros_like(parameter, dtype=torch.int16)
        elif parameter.dtype == torch.float16:
            state["master"] = parameter.float()
        return state

    def _zeros(self, parameter: torch.Tensor) -> torch.Tensor:
        if self._moments != "8bit":
            return torch.zeros_like(parameter, dtype=_MOMENTS[self._moments])
        size = abi().strata_optim_moment_bytes(abi().value("STRATA_OPTIM_MOMENTS_8BIT"), parameter.numel())
        return torch.zeros(size, dtype=torch.uint8)

    def _row(self, parameter: torch.Tensor, grad: torch.Tensor, group: int, position: int) -> Any:
        """struct strata_optim_tensor.  Addresses are looked at in each step: a parameter's data may have been replaced."""
        if not self.state[parameter]:
            self.state[parameter].update(self._begin(parameter))
        state, here = self.state[parameter], parameter.data_ptr()
        if "master" in state:  # what wrote to p.data has not changed its version
            state["master"].copy_(_followed(state["master"], parameter))
        known, row = self._rows.get(parameter, (0, None))
        if row is None or known != here:
            row = self._made_row(parameter, state, group, position)
            self._rows[parameter] = (here, row)
        row.grad = grad.data_ptr()
        return row

    def _made_row(self, parameter: torch.Tensor, state: dict[str, Any], group: int, position: int) -> Any:
        _check(parameter)
        if state["form"] != _form(parameter):
            raise ValueError("a parameter has another dtype, shape or order than in its first step: make a new optimizer")
        layout, here = _LAYOUTS[parameter.dtype], parameter.data_ptr()
        row = abi().make(
            "strata_optim_tensor",
            layout=abi().value(f"STRATA_OPTIM_{layout}"),
            grad_dtype=abi().value(f"STRATA_{_DTYPES[parameter.dtype]}"),
            elems=parameter.numel(),
            decay=True,
            moment_format=abi().value(f"STRATA_OPTIM_MOMENTS_{_DTYPES.get(_MOMENTS[self._moments], '8BIT')}"),
            position=position,
            group=group,
        )
        for name, member in zip(self.moment_names, ("moment1", "moment2")):
            setattr(row, member, state[name].data_ptr())
        if layout == "SPLIT":
            row.weight, row.low_half = _at(row, "weight", here), _at(row, "low_half", state["low_half"].data_ptr())
        elif layout == "F32":
            row.master = _at(row, "master", here)
        else:
            row.master, row.copy = _at(row, "master", state["master"].data_ptr()), _at(row, "copy", here)
            row.copy_dtype = abi().value("STRATA_F16")
        return row

    # --- state_dict ---

    def _parameters(self) -> list[torch.Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def state_dict(self) -> dict[str, Any]:
        """PyTorch's, with the masters of 16-bit parameters as "master" in fp32."""
        told = super().state_dict()
        parameters = self._parameters()
        told["state"] = {index: self._shown(parameters[index], state) for index, state in told["state"].items()}
        return dict(told)

    def _shown(self, parameter: torch.Tensor, state: dict[str, Any]) -> dict[str, Any]:
        shown = {name: state[name] for name in self.moment_names}
        shown["step"] = torch.tensor(float(state["step"]))
        if "master" in state:
            shown["master"] = state["master"]
        elif "low_half" in state:
            # Bits of the master: those of the weight as the upper half, and the signed lower half added.
            upper = parameter.detach().view(torch.int16).to(torch.int32) << 16
            shown["master"] = (upper + state["low_half"].to(torch.int32)).view(torch.float32)
        return shown

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Also PyTorch's own of the same rule.  Masters keep their bits where the parameters are what they round to."""
        groups = state_dict["param_groups"]
        if [len(group["params"]) for group in groups] != [len(group["params"]) for group in self.param_groups]:
            raise ValueError("the state is of other groups of parameters than this optimizer's")
        for name in _ABSENT:
            if any(group.get(name) for group in groups):
                raise ValueError(f"the state is of an optimizer with {name}, which strata.optim does not have")
        order = [index for group in groups for index in group["params"]]
        made = {
            parameter: self._taken(parameter, state_dict["state"][index])
            for index, parameter in zip(order, self._parameters())
            if index in state_dict["state"]
        }
        for group, saved in zip(self.param_groups, groups):
            group.update({name: value for name, value in saved.items() if name != "params"})
        self._rows.clear()
        self.state.clear()
        self.state.update(made)
        self._tell_groups()

    def _taken(self, parameter: torch.Tensor, saved: dict[str, Any]) -> dict[str, Any]:
        state = self._begin(parameter)
        given_names = [name for name in self.moment_names if saved.get(name) is not None]
        if self.rule != "SGD" and len(given_names) < len(self.moment_names):
            raise ValueError(f"the state lacks {', '.join(set(self.moment_names) - set(given_names))}: it is of another rule")
        # PyTorch's SGD counts no steps: a buffer, None before the first one, says that there was one.
        state["step"] = int(saved.get("step", len(given_names)))
        for name in given_names:
            given = saved[name]
            if (given.dtype == torch.uint8) != (self._moments == "8bit") or given.numel() != state[name].numel():
                raise ValueError(
                    f"{name} has {given.numel()} elements of {given.dtype}: not those of this parameter as {self._moments}"
                )
            state[name].copy_(given)
        if "master" in saved and parameter.dtype != torch.float32:
            master = saved["master"].to(torch.float32)
            if parameter.dtype == torch.float16:
                state["master"] = _followed(master, parameter)
            else:
                bits = torch.empty_like(parameter, dtype=torch.float32).copy_(master).view(torch.int32)
                upper = parameter.detach().view(torch.int16).to(torch.int32) << 16
                low = bits - upper
                state["low_half"] = torch.where((low >= -(1 << 15)) & (low < 1 << 15), low, 0).to(torch.int16)
        return state


def _check(parameter: torch.Tensor) -> None:
    what = f"a parameter of shape {tuple(parameter.shape)}"
    if parameter.dtype not in _DTYPES:
        raise TypeError(f"{what} is {parameter.dtype}: strata.optim takes float32, bfloat16 and float16")
    if parameter.device.type != "cpu":
        raise ValueError(f"{what} is on {parameter.device}: strata.optim updates parameters in main memory")
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if not parameter.is_contiguous() and not (
        parameter.dim() in formats and parameter.is_contiguous(memory_format=formats[parameter.dim()])
    ):
        raise ValueError(f"{what} is a view with gaps: make it contiguous")


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    """The gradient, in the parameter's dtype and order in memory."""
    grad = parameter.grad
    assert grad is not None
    if grad.is_sparse:
        raise ValueError("sparse gradients are not supported: make the embedding with sparse=False")
    if grad.dtype == parameter.dtype and grad.stride() == parameter.stride():
        return grad
    return torch.empty_like(parameter).copy_(grad)


def _form(parameter: torch.Tensor) -> tuple[Any, ...]:
    return parameter.dtype, parameter.shape, parameter.stride()


def _followed(master: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Masters, but for elements whose weight is not what they round to: someone has set those."""
    return torch.where(master.to(parameter.dtype) == parameter, master, parameter.float())


def _at(row: Any, member: str, address: int) -> Any:
    return ctypes.cast(address, dict(row._fields_)[member])


class AdamW(_Optimizer):
    """torch.optim.AdamW."""

    rule = "ADAMW"
    moment_names = ("exp_avg", "exp_avg_sq")
    settings: ClassVar[dict[str, str]] = {"lr": "lr", "betas": "", "eps": "eps", "weight_decay": "weight_decay"}

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        device: str = "cpu",
        moments: str = "fp32",
        threads: int = 0,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults, device, moments, threads)


class Adam(AdamW):
    """torch.optim.Adam: decay is added to the gradient."""

    rule = "ADAM"

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        **placement: Any,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, **placement)


class Lion(_Optimizer):
    """Lion (Chen et al., arXiv:2302.06675), with decoupled decay."""

    rule = "LION"
    moment_names = ("exp_avg",)
    settings: ClassVar[dict[str, str]] = {"lr": "lr", "betas": "", "weight_decay": "weight_decay"}

    def __init__(
        self,
        params: Params,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0,
        *,
        device: str = "cpu",
        moments: str = "fp32",
        threads: int = 0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay}, device, moments, threads)


class Adagrad(_Optimizer):
    """torch.optim.Adagrad, without a decay of the rate."""

    rule = "ADAGRAD"
    moment_names = ("sum",)
    settings: ClassVar[dict[str, str]] = {"lr": "lr", "eps": "eps", "weight_decay": "weight_decay"}

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        eps: float = 1e-10,
        weight_decay: float = 0,
        *,
        device: str = "cpu",
        moments: str = "fp32",
        threads: int = 0,
    ) -> None:
        super().__init__(params, {"lr": lr, "eps": eps, "weight_decay": weight_decay}, device, moments, threads)


class SGD(_Optimizer):
    """torch.optim.SGD; a momentum is kept also where it is 0."""

    rule = "SGD"
    moment_names = ("momentum_buffer",)
    settings: ClassVar[dict[str, str]] = {
        "lr": "lr",
        "momentum": "momentum",
        "dampening": "dampening",
        "weight_decay": "weight_decay",
        "nesterov": "nesterov",
    }

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        device: str = "cpu",
        moments: str = "fp32",
        threads: int = 0,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
        }
        super().__init__(params, defaults, device, moments, threads)
