"""deepspeed.runtime.engine: strata.torch.Engine with DeepSpeed's names."""

from __future__ import annotations

import json
import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ..._handles import Named, file_of
from ..._report import abi, got
from ..._scratch import own_directory, removing
from ...errors import Error
from ...files import latest_of
from ...layers import Step
from ...torch import Engine
from ...torch.pages import cast_norms
from ...torch.ranks import agree
from .. import comm
from .._install import absent, missing
from .._settings import resolved, section
from ..utils import log_dist, logger
from . import lr_schedules
from ._whole import ParameterOffload, mark

__getattr__ = missing(__name__)

_engines: weakref.WeakSet[DeepSpeedEngine] = weakref.WeakSet()


def engines_of(parameters: Iterable[torch.Tensor]) -> list[DeepSpeedEngine]:
    """The engines that any of these belong to."""
    asked = {id(parameter) for parameter in parameters}
    return [engine for engine in _engines if any(id(parameter) in asked for parameter in engine.module.parameters())]


def engine_of(module: torch.nn.Module) -> DeepSpeedEngine | None:
    return next((engine for engine in _engines if engine.module is module), None)


class DeepSpeedEngine(Engine):
    """What initialize() returns."""

    ended = _replaced = False
    _scratch: Any = None  # removes the directory in which checkpoints are made, where that is the engine's own

    def __init__(self, module: torch.nn.Module, config: dict[str, Any], *, lr_scheduler: Any = None, **what: Any) -> None:
        where: str | None = None
        changes: dict[str, Any] = {}
        if not any(key in config for key in _PRECISIONS) and all(one.dtype == torch.bfloat16 for one in module.parameters()):
            changes["bf16.enabled"] = True  # such a configuration casts nothing
        if "save" not in section(config, "strata"):
            where, owner = _scratch()
            changes["strata.keep"] = 1  # what is linked elsewhere needs no second one here
            if owner is not None:
                self._scratch = removing(self, where, owner)
        own = {key: value for key, value in config.items() if key != "scheduler"}  # which is Python's
        here = Named.of(own, file_of(config))
        super().__init__(module, here, save=where, overrides=changes, allow_unknown=True, **what)
        self.config = config
        self.training_dataloader: Any = None
        self.micro_steps = self.global_steps = self.global_samples = self.skipped_steps = 0
        self._applied = self._in_no_sync = False
        self.lr_scheduler = self._scheduler(lr_scheduler)
        self.optimizer.check()
        if self.zero_optimization_stage() == 3:
            mark(module, {k.parameter for k in self._kept if k.away is not None})
            self.optimizer.parameter_offload = ParameterOffload(self)  # type: ignore[attr-defined]
        _engines.add(self)

    def _absent(self, name: str) -> AttributeError:
        return absent(f"DeepSpeedEngine.{name}, and {type(self.module).__name__} has none", AttributeError)

    def _scheduler(self, given: Any) -> Any:
        """What initialize() was given, a function of the optimizer, or the configuration's: DeepSpeed's or PyTorch's."""
        if given is not None:
            return given if hasattr(given, "step") else given(self.optimizer)
        name = section(self.config, "scheduler").get("type")
        if not name:
            return None
        found = getattr(lr_schedules if name in lr_schedules.VALID_LR_SCHEDULES else torch.optim.lr_scheduler, name, None)
        if found is None:
            known = ", ".join(lr_schedules.VALID_LR_SCHEDULES)
            raise ValueError(f"{file_of(self.config) or 'the configuration'}: scheduler.type: {name} is none of {known}")
        return found(self.optimizer, **section(self.config, "scheduler", "params"))

    # --- a step ---

    def backward(  # type: ignore[override]
        self, loss: torch.Tensor, retain_graph: bool = False, scale_wrt_gas: bool = True
    ) -> torch.Tensor:
        """Returns the loss as it was differentiated: divided by gradient_accumulation_steps unless scale_wrt_gas is false."""
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise TypeError("backward() takes a loss, a tensor of one element")
        super().backward(loss, divide=scale_wrt_gas, retain_graph=retain_graph)
        return loss / self.accumulation if scale_wrt_gas else loss

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Whether the micro-batch that follows is the step's last one; without it every gradient_accumulation_steps-th is."""
        self.boundary = is_boundary

    def is_gradient_accumulation_boundary(self) -> bool:
        return (self._micro_steps + 1) % self.accumulation == 0 if self.boundary is None else self.boundary

    def step(self, lr_kwargs: Mapping[str, Any] | None = None) -> Step | None:
        """After each micro-batch; at the step's last one clips, updates, and steps the scheduler."""
        if self._in_no_sync:
            raise RuntimeError("step() is called after no_sync(), not within it")
        made = super().step()
        self._applied = made is not None and not made.skipped
        self.micro_steps += 1
        if made is not None:
            self.global_steps += 1
            self.global_samples += self.train_batch_size()
            self.skipped_steps += made.skipped
        if self._applied and self.lr_scheduler is not None:
            self.lr_scheduler.step(**(lr_kwargs or {}))
        every = self.config.get("steps_per_print")
        if made is not None and isinstance(every, (int, float)) and every > 0 and self.global_steps % every == 0:
            told = f"step={self.global_steps}, skipped={self.skipped_steps}, lr={self.get_lr()}, mom={self.get_mom()}"
            log_dist(told, ranks=[0])
        return made

    def was_step_applied(self) -> bool:
        return self._applied

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Of another backward than the engine's: those of a step under way are not dropped by this."""
        super().zero_grad(set_to_none=True)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """For micro-batches that are not the step's last one: gradients are exchanged by step() alone."""
        self._in_no_sync = True
        try:
            yield
        finally:
            self._in_no_sync = False

    def get_global_grad_norm(self) -> float | None:
        """Of the last step, before clipping; None before the first one."""
        return self.grad_norm

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Clipping is step()'s, by gradient_clipping: asked for another norm this raises."""
        if float(norm_type) != 2 or float(max_norm) != self.gradient_clipping():
            raise ValueError(
                f"clip_grad_norm_({max_norm}, norm_type={norm_type}) has no effect on an engine's gradients: step() clips them "
                f"at gradient_clipping {self.gradient_clipping()}: set that in the configuration"
            )
        return torch.tensor(float("nan") if self.grad_norm is None else self.grad_norm)

    # --- facts ---

    def train_batch_size(self) -> int:
        return int(self.settings["train_batch_size"])

    def train_micro_batch_size_per_gpu(self) -> int:
        return int(self.settings["train_micro_batch_size_per_gpu"])

    def gradient_accumulation_steps(self) -> int:
        return self.accumulation

    def gradient_clipping(self) -> float:
        return float(self.settings["gradient_clipping"])

    def zero_optimization_stage(self) -> int:
        return int(self.settings["zero_optimization"]["stage"])

    def bfloat16_enabled(self) -> bool:
        return bool(section(self.settings, "bf16").get("enabled"))

    def fp16_enabled(self) -> bool:
        return bool(section(self.settings, "fp16").get("enabled"))

    def get_lr(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def get_mom(self) -> list[Any]:
        """Betas of each group; of SGD its momentum."""
        rule = self.settings["optimizer"]
        name = "momentum" if rule["type"] == "SGD" else "betas"
        return [group.get(name, rule["params"].get(name, 0.0)) for group in self.optimizer.param_groups]

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def local_rank(self) -> int:
        return comm.get_local_rank()

    @property
    def global_rank(self) -> int:
        return comm.get_rank()

    @property
    def world_size(self) -> int:
        return comm.get_world_size()

    # --- weights and checkpoints ---

    def ds_external_parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        """Parameters that a module uses beside its own: these need no word here."""
        return []

    def zero_gather_16bit_weights_on_model_save(self) -> bool:
        """True whatever the configuration says: weights are whole here."""
        return True

    def _zero3_consolidated_16bit_state_dict(self, exclude_frozen_parameters: bool = False) -> dict[str, Any] | None:
        """Of rank 0; None elsewhere.  All ranks call it: layers that page are read by all of them."""
        state = self.module_state_dict(exclude_frozen_parameters)
        return state if self.global_rank == 0 else None

    def module_state_dict(self, exclude_frozen_parameters: bool = False) -> dict[str, Any]:
        frozen = {name for name, one in self.module.named_parameters(remove_duplicate=False) if not one.requires_grad}
        left_out = frozen if exclude_frozen_parameters else set()
        return {name: one for name, one in self.module.state_dict().items() if name not in left_out}

    def save_16bit_model(
        self, save_dir: str, save_filename: str = "pytorch_model.bin", exclude_frozen_parameters: bool = False
    ) -> bool:
        state = self._zero3_consolidated_16bit_state_dict(exclude_frozen_parameters)
        if state is not None:
            os.makedirs(save_dir, exist_ok=True)
            torch.save(state, os.path.join(save_dir, save_filename))
        comm.barrier()
        return True

    def save_checkpoint(
        self,
        save_dir: str,
        tag: str | None = None,
        client_state: Mapping[str, Any] | None = None,
        save_latest: bool = True,
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """On every rank.  SAVE_DIR/TAG is a checkpoint as Engine.save() makes it, which has frozen parameters in any case.

        It is whole when this returns; with the configuration's checkpoint.writer.decoupled its files follow beside training.
        """
        if not save_dir:
            raise ValueError("save_checkpoint() needs a directory")
        tag = f"global_step{self.global_steps}" if tag is None else str(tag)
        self._save(save_dir, tag, lambda: self._own_state(client_state), save_latest)
        error: Exception | None = None
        try:
            self.saved(wait=not section(self.config, "checkpoint", "writer").get("decoupled"))
        except Exception as told:
            error = told
        agree(self._layers.comm, error, "a checkpoint that is saved")  # rank 0 has linked it
        return True

    def _own_state(self, client_state: Mapping[str, Any] | None) -> dict[str, Any]:
        """What is saved as the client_state of Engine.save()."""
        try:
            own = dict(client_state or {})
        except (TypeError, ValueError) as error:
            told = f"client_state is {type(client_state).__name__}"
            raise Error("E_INPUT", told, exit_code=2, key="client_state", remedy="give a dict, or None") from error
        return {
            "client_state": own,
            "lr_scheduler": self.lr_scheduler.state_dict() if hasattr(self.lr_scheduler, "state_dict") else None,
            "counts": {name: getattr(self, name) for name in _COUNTS},
        }

    def load_checkpoint(
        self,
        load_dir: str,
        tag: str | None = None,
        load_module_strict: bool = True,
        load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True,
        load_module_only: bool = False,
        custom_load_fn: Any = None,
    ) -> tuple[str | None, dict[str, Any] | None]:
        """On every rank.  Returns the checkpoint's directory and client_state; (None, None) where LOAD_DIR has no latest."""
        self._refuse_ended()
        if custom_load_fn is not None:
            raise NotImplementedError("load_checkpoint(custom_load_fn): a checkpoint's weights are loaded by name")
        self.saved(wait=True)
        tag = None if tag is None else str(tag)
        if tag is None and not os.path.lexists(os.path.join(load_dir, "latest")):
            logger.warning("%s: there is no latest in it: nothing is loaded", load_dir)
            return None, None
        alone = load_module_only or not load_optimizer_states
        what = {"weights_only": True, "strict": load_module_strict} if alone else {}
        told = self.load(load_dir, tag, random_states=False, trusted=True, **what)  # trusted, as DeepSpeed's
        for name, value in ({} if load_module_only else told["counts"]).items():
            setattr(self, name, value)
        scheduled = load_lr_scheduler_states and not load_module_only
        if scheduled and told["lr_scheduler"] is not None and self.lr_scheduler is not None:
            self.lr_scheduler.load_state_dict(told["lr_scheduler"])
        return os.path.join(load_dir, latest_of(Path(load_dir)) if tag is None else tag), told["client_state"]

    def check_client_state(self, client_state: Any, place: Path) -> None:
        told = client_state if isinstance(client_state, dict) else {}
        counts, scheduler = told.get("counts"), told.get("lr_scheduler", ())
        whole = "client_state" in told and isinstance(counts, dict) and set(counts) == set(_COUNTS)
        if not whole or not isinstance(scheduler, (dict, type(None))):
            raise ValueError(f"{place} was not made by save_checkpoint(): strata.torch.Engine.load() reads it")

    def compile(self, backend: Any = None, compile_kwargs: Mapping[str, Any] | None = None, **more: Any) -> None:
        """torch.compile of the module, in place."""
        self.module.compile(**({} if backend is None else {"backend": backend}), **dict(compile_kwargs or {}), **more)

    def replace(self) -> None:
        """Another engine is to have the module."""
        self.destroy()
        self._replaced = True

    def _refuse_ended(self) -> None:
        if self._replaced:
            raise RuntimeError("this engine is destroyed: initialize() was called again with its module; use the new engine")
        super()._refuse_ended()

    def destroy(self) -> None:
        self.ended = True
        _engines.discard(self)
        super().destroy()
        if self._scratch is not None:
            self._scratch()


class ForwardEngine(DeepSpeedEngine):
    """What initialize() returns where there is no optimizer: the module, in the configuration's precision, for its forward."""

    def __init__(self, module: torch.nn.Module, config: dict[str, Any]) -> None:
        torch.nn.Module.__init__(self)
        with resolved(config, allow_unknown=True, forward_only=True) as opened:
            self.settings = json.loads(got(abi().strata_config_json, opened.pointer))
        self.config = config
        self.accumulation = int(self.settings["gradient_accumulation_steps"])
        self.optimizer = self.lr_scheduler = self.training_dataloader = self.grad_norm = None  # type: ignore[assignment]
        self.micro_steps = self.global_steps = self.global_samples = self.skipped_steps = 0
        self._applied = self._in_no_sync = False
        if any(key in config for key in _PRECISIONS):
            wanted = torch.bfloat16 if self.bfloat16_enabled() else torch.float16 if self.fp16_enabled() else torch.float32
            for parameter in filter(torch.is_floating_point, module.parameters()):
                parameter.data = parameter.data.to(wanted)
            cast_norms(module, wanted)
        if comm.get_world_size() > 1:
            for tensor in (*module.parameters(), *module.buffers()):
                torch.distributed.broadcast(tensor.data, 0)
        if self.zero_optimization_stage() == 3:
            mark(module)
        self.module = module

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError(
            "this engine has no optimizer, and only computes forward: give initialize() one, or name one in the configuration"
        )

    backward = step = save = load = save_checkpoint = load_checkpoint = clip_grad_norm_ = _refuse

    def _nothing(self, *_: Any, **__: Any) -> None:
        """Nothing is pending, and no pages are the engine's."""

    flush = drop = follow = _nothing

    def destroy(self) -> None:
        self.ended = True

    def get_lr(self) -> list[float]:
        return []

    get_mom = get_lr


_PRECISIONS = ("bf16", "bfloat16", "fp16")
_COUNTS = ("micro_steps", "global_steps", "global_samples", "skipped_steps")


def _scratch() -> tuple[str, int | None]:
    """Where checkpoints are made that are then linked to wherever save_checkpoint() is told: one directory for all ranks, and
    on rank 0 the file in it that says whether it is in use."""
    made: list[Any] = [""]
    owner = None
    if comm.get_rank() == 0:
        made[0], owner = own_directory(".strata-", os.getcwd() if os.access(".", os.W_OK) else tempfile.gettempdir())
    if comm.get_world_size() > 1:
        torch.distributed.broadcast_object_list(made)
    return made[0], owner
