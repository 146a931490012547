"""PyTorch's optimizers with strata's kernels: AdamW, Adam, Lion, Adagrad, SGD (docs/python.md).

    optimizer = strata.optim.AdamW(model.parameters(), lr=1e-4)     # in the place of torch.optim.AdamW

p.grad is PyTorch's until step(), which reads it, clips nothing, and skips parameters that have none, as PyTorch does.  After
step() nothing is pending.  Masters of 16-bit parameters are kept at full precision, and moments in fp32, bf16 or 8 bits: in
memory, or with device="nvme" in files without names in nvme_path, a directory or several.
"""

from __future__ import annotations

import copy
import ctypes
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch

from ._abi import Text
from ._calls import Handle, blocked
from ._drive import Drive, Piece
from ._report import abi
from .errors import Error

Params: TypeAlias = Iterable[Any]
Paths: TypeAlias = Text | Sequence[Text]

_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
_LAYOUTS = {torch.float32: "F32", torch.bfloat16: "SPLIT", torch.float16: "FULL"}
_ABSENT = ("maximize", "amsgrad", "lr_decay")
_MOMENTS = {"fp32": torch.float32, "bf16": torch.bfloat16, "8bit": torch.uint8}


class _Member(NamedTuple):
    """A parameter that a step updates.  Its gradient lives as long."""

    parameter: torch.Tensor
    grad: torch.Tensor
    group: int
    position: int


class _Optimizer(torch.optim.Optimizer):
    """What the rules have in common.

    A parameter's state is PyTorch's: "step", and moments by PyTorch's names.  On a drive those are not in `state`.
    """

    rule: ClassVar[str]
    moment_names: ClassVar[tuple[str, ...]]
    settings: ClassVar[dict[str, str]]  # of a group, and their members in struct strata_optim_config

    def __init__(
        self, params: Params, defaults: dict[str, Any], device: str, nvme_path: Paths, moments: str, threads: int
    ) -> None:
        paths = [nvme_path] if isinstance(nvme_path, (str, bytes, os.PathLike)) else list(nvme_path)
        if device not in ("cpu", "nvme"):
            raise ValueError(f'device is where state lies, "cpu" or "nvme", not {device!r}')
        if (device == "nvme") != (len(paths) > 0):
            raise ValueError('device="nvme" takes nvme_path, a directory or several, and "cpu" takes none')
        if moments not in _MOMENTS:
            raise ValueError(f"moments is one of {', '.join(_MOMENTS)}, not {moments!r}")
        self._moments = moments
        self._threads = threads
        self._handle: Handle | None = None
        self._told: dict[int, tuple[Any, ...]] = {}  # what the library knows of each group
        self._rows: dict[torch.Tensor, tuple[int, Any]] = {}  # struct strata_optim_tensor of each, for data at an address
        self._pack = int(abi().constant("STRATA_OPTIM_PACK"))
        self._drive: Drive | None = None
        self._ended: Error | None = None  # why there is no state any more
        self._changed = False  # a step that a failure would leave in the middle
        super().__init__(params, defaults)
        self._tell_groups()
        if paths:
            self._drive = blocked(lambda: Drive(paths, partial(_bytes_of, moments)))
            self._drive.check_room(self._sizes(p for p in self._parameters() if p.requires_grad))

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._handle, self._told, self._rows = None, {}, {}
        self._drive, self._ended, self._changed = None, None, False

    def __getstate__(self) -> dict[str, Any]:
        if self._drive is not None:
            raise TypeError("an optimizer whose state is on NVMe is neither copied nor pickled: use its state_dict()")
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
        self._go_on()
        self._tell_groups()
        members = []
        position = 0
        for index, group in enumerate(self.param_groups):
            for parameter in group["params"]:
                if parameter.grad is not None:
                    members.append(_Member(parameter, _gradient(parameter), index, position))
                position += -(-parameter.numel() // self._pack) * self._pack
        rows = {} if self._drive is not None else {member.parameter: self._row(member) for member in members}
        if members:
            self._changed = False
            try:
                blocked(lambda: self._update(members, rows))  # all of it, also after Ctrl-C
            except Error as error:
                if self._changed:
                    self._end(error)
                raise
        return loss

    def _update(self, members: list[_Member], rows: dict[torch.Tensor, Any]) -> None:
        handle = self._handle_here()
        if self._drive is not None:
            self._begin_on(self._drive, [member.parameter for member in members])
        by_step: dict[int, list[_Member]] = {}
        for member in members:
            by_step.setdefault(self.state[member.parameter]["step"], []).append(member)
        for count, those in by_step.items():
            if abi().strata_optim_get_step(handle.pointer) != count:
                abi().strata_optim_set_step(handle.pointer, count)
            if self._drive is None:
                tensors = _array([rows[member.parameter] for member in those])
                abi().strata_optim_step(handle.pointer, tensors, len(tensors), 1.0, None)
            else:
                self._pass(handle, self._drive, those)
            for member in those:
                torch.autograd.graph.increment_version(member.parameter)
                self.state[member.parameter]["step"] = count + 1

    # --- state on a drive ---

    @torch.no_grad()
    def _pass(self, handle: Handle, drive: Drive, members: list[_Member]) -> None:
        """A step of these parameters, chunk by chunk of their state."""
        wanted = {member.parameter: member for member in members}
        abi().strata_optim_begin(handle.pointer, 1.0)
        try:
            with closing(drive.passing(wanted)) as chunks:
                for chunk, memory in chunks:
                    pieces = [piece for piece in chunk.pieces if piece.owner in wanted]
                    tensors = _array([self._piece_row(wanted[piece.owner], piece, memory) for piece in pieces])
                    self._changed = True
                    abi().strata_optim_apply(handle.pointer, tensors, len(tensors), None)
            abi().strata_optim_end(handle.pointer)
        except BaseException:
            abi().strata_optim_set_step(handle.pointer, 0)  # which forgets the step that is open
            raise

    def _begin_on(self, drive: Drive, parameters: list[torch.Tensor]) -> None:
        """Space for parameters that have their first gradient."""
        for parameter in parameters:
            _check(parameter, self.state.get(parameter))
        new = [parameter for parameter in parameters if not self.state.get(parameter)]
        drive.place(self._sizes(new))
        for parameter in new:
            self.state[parameter].update(step=0, form=_form(parameter))
            if parameter.dtype == torch.float16:
                self._changed = True
                drive.move(parameter, {"master": _bytes(parameter.detach().float())}, write=True)

    def _sizes(self, parameters: Iterable[torch.Tensor]) -> dict[Any, tuple[int, tuple[str, ...]]]:
        """As the drive wants them: elements, and names of arrays."""
        more = {torch.float32: (), torch.bfloat16: ("low_half",), torch.float16: ("master",)}
        return {parameter: (parameter.numel(), (*self.moment_names, *more[parameter.dtype])) for parameter in parameters}

    def _piece_row(self, member: _Member, piece: Piece, memory: memoryview) -> Any:
        if "master" in piece.offsets:
            master = torch.frombuffer(memory, dtype=torch.float32, count=piece.elems, offset=piece.offsets["master"])
            weight = _flat(member.parameter)[piece.first : piece.first + piece.elems]
            master.copy_(_followed(master, weight))
        begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        arrays = {name: begin + offset for name, offset in piece.offsets.items()}
        row = self._made_row(member, arrays, piece.first, piece.elems)
        row.grad = member.grad.data_ptr() + piece.first * member.grad.element_size()
        return row

    def _whole(self, parameter: torch.Tensor) -> dict[str, Any]:
        """A parameter's state with its moments and masters, wherever they are."""
        state: dict[str, Any] = self.state[parameter]
        if self._drive is None:
            return state
        arrays = self._arrays(parameter)
        self._drive.move(parameter, {name: _bytes(array) for name, array in arrays.items()}, write=False)
        return {**state, **arrays}

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
        return {"step": 0, "form": _form(parameter), **self._arrays(parameter)}

    def _arrays(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        """What a parameter's state is before its first step."""
        arrays = {name: self._zeros(parameter) for name in self.moment_names}
        if parameter.dtype == torch.bfloat16:
            arrays["low_half"] = torch.zeros_like(parameter, dtype=torch.int16)
        elif parameter.dtype == torch.float16:
            arrays["master"] = parameter.detach().float()
        return arrays

    def _zeros(self, parameter: torch.Tensor) -> torch.Tensor:
        if self._moments != "8bit":
            return torch.zeros_like(parameter, dtype=_MOMENTS[self._moments])
        return torch.zeros(_bytes_of(self._moments, "", parameter.numel()), dtype=torch.uint8)

    def _row(self, member: _Member) -> Any:
        """struct strata_optim_tensor.  Addresses are looked at in each step: a parameter's data may have been replaced."""
        parameter = member.parameter
        if not self.state[parameter]:
            self.state[parameter].update(self._begin(parameter))
        state, here = self.state[parameter], parameter.data_ptr()
        if "master" in state:  # what wrote to p.data has not changed its version
            state["master"].copy_(_followed(state["master"], parameter))
        known, row = self._rows.get(parameter, (0, None))
        if row is None or known != here:
            _check(parameter, state)
            arrays = {name: value.data_ptr() for name, value in state.items() if isinstance(value, torch.Tensor)}
            row = self._made_row(member, arrays, 0, parameter.numel())
            self._rows[parameter] = (here, row)
        row.grad = member.grad.data_ptr()
        return row

    def _made_row(self, member: _Member, arrays: dict[str, int], first: int, elems: int) -> Any:
        """Of elements of a parameter, whose arrays of state begin at these addresses; all but its gradient."""
        parameter = member.parameter
        layout, here = _LAYOUTS[parameter.dtype], parameter.data_ptr() + first * parameter.element_size()
        row = abi().make(
            "strata_optim_tensor",
            layout=abi().value(f"STRATA_OPTIM_{layout}"),
            grad_dtype=abi().value(f"STRATA_{_DTYPES[parameter.dtype]}"),
            elems=elems,
            decay=True,
            moment_format=_moment_format(self._moments),
            position=member.position + first,
            group=member.group,
        )
        for name, role in zip(self.moment_names, ("moment1", "moment2")):
            setattr(row, role, arrays[name])
        if layout == "SPLIT":
            row.weight, row.low_half = _at(row, "weight", here), _at(row, "low_half", arrays["low_half"])
        elif layout == "F32":
            row.master = _at(row, "master", here)
        else:
            row.master, row.copy = _at(row, "master", arrays["master"]), _at(row, "copy", here)
            row.copy_dtype = abi().value("STRATA_F16")
        return row

    # --- the end ---

    def close(self) -> None:
        """Give back threads, memory and the drive's space; nothing can be asked of the optimizer then."""
        self._ended = self._ended or Error("E_INVAL", "the optimizer is closed", exit_code=2)
        self._give_back()

    def _give_back(self) -> None:
        self._rows.clear()
        if self._drive is not None:
            self._drive.clear()
        if self._handle is not None and self._handle.process == os.getpid():
            self._handle.close()
        self._handle = None

    def _end(self, error: Error) -> None:
        self._ended = Error(
            error.status,
            f"the optimizer has ended with a part of its parameters updated: {error.cause}",
            exit_code=error.exit_code,
            remedy="make a new one, and load parameters and state_dict of the last checkpoint",
        )
        self._give_back()
        raise self._ended from error

    def _go_on(self) -> None:
        if self._ended is not None:
            raise copy.copy(self._ended)

    # --- state_dict ---

    def _parameters(self) -> list[torch.Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def state_dict(self) -> dict[str, Any]:
        """PyTorch's, with the masters of 16-bit parameters as "master" in fp32."""
        self._go_on()
        for hook in self._optimizer_state_dict_pre_hooks.values():
            hook(self)
        indices = {parameter: index for index, parameter in enumerate(self._parameters())}
        groups = [{**group, "params": [indices[parameter] for parameter in group["params"]]} for group in self.param_groups]
        state = {indices[parameter]: self._shown(parameter) for parameter, state in self.state.items() if state}
        return _hooked(self, self._optimizer_state_dict_post_hooks, {"state": state, "param_groups": groups})

    def _shown(self, parameter: torch.Tensor) -> dict[str, Any]:
        state = self._whole(parameter)
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
        self._go_on()
        given = _hooked(self, self._optimizer_load_state_dict_pre_hooks, state_dict.copy())
        groups = given["param_groups"]
        if [len(group["params"]) for group in groups] != [len(group["params"]) for group in self.param_groups]:
            raise ValueError("the state is of other groups of parameters than this optimizer's")
        for name in _ABSENT:
            if any(group.get(name) for group in groups):
                raise ValueError(f"the state is of an optimizer with {name}, which strata.optim does not have")
        order = [index for group in groups for index in group["params"]]
        found = {p: given["state"][index] for index, p in zip(order, self._parameters()) if index in given["state"]}
        for parameter, saved in found.items():
            self._check_saved(parameter, saved)
        if self._drive is not None:
            made = self._load_on(self._drive, found)
        else:
            made = {parameter: self._taken(parameter, saved) for parameter, saved in found.items()}
        for group, saved in zip(self.param_groups, groups):
            group.update({name: value for name, value in saved.items() if name != "params"})
        self._rows.clear()
        self.state.clear()
        self.state.update(made)
        self._tell_groups()
        for hook in self._optimizer_load_state_dict_post_hooks.values():
            hook(self)

    def _check_saved(self, parameter: torch.Tensor, saved: dict[str, Any]) -> None:
        _check(parameter)
        missing = [name for name in self.moment_names if saved.get(name) is None]
        if missing and self.rule != "SGD":
            raise ValueError(f"the state lacks {', '.join(missing)}: it is of another rule")
        elems = parameter.numel() if self._moments != "8bit" else _bytes_of(self._moments, "", parameter.numel())
        for name in set(self.moment_names) - set(missing):
            dtype, count = saved[name].dtype, saved[name].numel()
            if (dtype == torch.uint8) != (self._moments == "8bit") or count != elems:
                raise ValueError(f"{name} has {count} elements of {dtype}: not those of this parameter as {self._moments}")

    def _load_on(self, drive: Drive, found: dict[torch.Tensor, dict[str, Any]]) -> dict[torch.Tensor, dict[str, Any]]:
        """State on the drive, one parameter's after the other's, in the place of all that was there."""
        made = {}
        try:
            drive.clear()
            drive.place(self._sizes(found))
            for parameter, saved in found.items():
                state = self._taken(parameter, saved)
                arrays = {name: _bytes(state.pop(name)) for name in list(state) if name not in ("step", "form")}
                drive.move(parameter, arrays, write=True)
                made[parameter] = state
        except Error as error:
            if self.state:
                self._end(error)
            drive.clear()
            raise
        return made

    def _taken(self, parameter: torch.Tensor, saved: dict[str, Any]) -> dict[str, Any]:
        state = self._begin(parameter)
        given_names = [name for name in self.moment_names if saved.get(name) is not None]
        # PyTorch's SGD counts no steps: a buffer, None before the first one, says that there was one.
        state["step"] = int(saved.get("step", len(given_names)))
        for name in given_names:
            state[name].copy_(saved[name])
        if "master" in saved and parameter.dtype != torch.float32:
            master = saved["master"].to(torch.float32)
            if parameter.dtype == torch.float16:
                state["master"].copy_(_followed(master, parameter))
            else:
                bits = torch.empty_like(parameter, dtype=torch.float32).copy_(master).view(torch.int32)
                upper = parameter.detach().view(torch.int16).to(torch.int32) << 16
                low = bits - upper
                state["low_half"] = torch.where((low >= -(1 << 15)) & (low < 1 << 15), low, 0).to(torch.int16)
        return state


def _array(rows: list[Any]) -> Any:
    return (abi().struct("strata_optim_tensor") * len(rows))(*rows)


def _moment_format(moments: str) -> int:
    return int(abi().value(f"STRATA_OPTIM_MOMENTS_{_DTYPES.get(_MOMENTS[moments], '8BIT')}"))


def _bytes_of(moments: str, name: str, elems: int) -> int:
    width = {"low_half": 2, "master": 4}.get(name)
    if width is not None:
        return width * elems
    return int(abi().strata_optim_moment_bytes(_moment_format(moments), elems))


def _hooked(optimizer: _Optimizer, hooks: dict[int, Callable[..., Any]], told: dict[str, Any]) -> dict[str, Any]:
    """What hooks make of a state, by PyTorch's protocol: they change it, or return another."""
    for hook in hooks.values():
        told = hook(optimizer, told) or told
    return told


def _check(parameter: torch.Tensor, state: dict[str, Any] | None = None) -> None:
    """Whether it can be updated, by the state that it has, if any."""
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
    if state and state["form"] != _form(parameter):
        raise ValueError("a parameter has another dtype, shape or order than in its first step: make a new optimizer")


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


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Its elements in the order of memory."""
    return torch.as_strided(tensor, (tensor.numel(),), (1,))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return _flat(tensor).view(torch.uint8)


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
        nvme_path: Paths = (),
        moments: str = "fp32",
        threads: int = 0,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults, device, nvme_path, moments, threads)


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
        nvme_path: Paths = (),
        moments: str = "fp32",
        threads: int = 0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay}, device, nvme_path, moments, threads)


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
        nvme_path: Paths = (),
        moments: str = "fp32",
        threads: int = 0,
    ) -> None:
        super().__init__(params, {"lr": lr, "eps": eps, "weight_decay": weight_decay}, device, nvme_path, moments, threads)


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
        nvme_path: Paths = (),
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
        super().__init__(params, defaults, device, nvme_path, moments, threads)
