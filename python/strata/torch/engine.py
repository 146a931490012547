"""strata.torch.Engine: parameters of any torch.nn.Module in the engine's pages, their masters and moments on tiers.

    engine = strata.torch.Engine(module, "ds_config.json")
    for batch in data:
        loss = engine(batch)
        engine.backward(loss)       # gradients go to the engine's sums: p.grad is None afterwards
        engine.step()               # clips, updates; nothing is pending when it returns

A parameter keeps its object and its shape; its memory is the engine's.  PyTorch's threads compute, strata's move and update.
With overlap=True the update runs beside the next forward, and each module waits for its own weights; whatever else reads them
calls flush() before, as state_dict(), evaluation and save() do by themselves.
"""

from __future__ import annotations

import gc
import logging
import os
import weakref
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from .._handles import Config, Machine
from .._lines import lines_of
from ..errors import Error
from ..layers import Group, Layers, Step, settings_of
from .alone import Turn, alone
from .beside import random_states
from .decoder import Behind, Decoder, decoder_of
from .found import blocks_of, measured
from .held import held
from .hooks import Hook, Overlap, watch_clipping
from .keys import DECODER, PAGED, RESIDENT, Keys
from .loads import load_all, load_weights
from .mapped import release, share, unchanged
from .optimizer import Optimizer, groups_of, rule_of
from .paged import Pager
from .pages import cut, followed, over, pieces_of, read
from .placed import check, device_of, dtype_of, leave, part, place
from .ranks import agree, meet
from .saves import Saves, prepared

_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


class Engine(torch.nn.Module):
    """A module whose parameters are trained by strata.  Attributes that it has not are the module's.

    config      DeepSpeed's file, or a dict of its keys (docs/config.md)
    parameters  as torch.optim takes them: parameters, or groups with "lr" and "weight_decay"; None: all that need a gradient
    optimizer   one of PyTorch's or of strata.optim's, whose rule, values and groups count in place of the configuration's
    save        directory of checkpoints, in place of "strata.save"; save() needs one.  overwrite: those of another run there
    max_steps   of the run, for schedules of the configuration that are as long as it
    allow_unknown  keys of the configuration that are not known are notices
    overlap     the update runs beside the next forward, as with "strata.update": "gated"
    machine     its device computes: strata.Machine(device="cuda") takes the weights to the GPU, and buffers, too

    With offload_param, or layers that are named, the weights of these page (paged.py):
    layers          names of layers, or of lists of them; None: the list with most parameters
    example         a batch, which is run once before: it shows the order of layers, and how large their inputs are
    boundary_bytes  the most that one layer's input takes; 0: as the example shows, or as "strata.boundary_bytes" says; else
                    PyTorch keeps the inputs

    compute     "strata": strata's own decoder computes, of a model that it knows (decoder.py); "auto": where it can, and a line
                says why not; None: as "strata.compute" says, "torch" unless set.  seq_len: the most tokens of its sequences

    With torch.distributed initialized its ranks train together, each with batches of its own, from rank 0's weights.
    """

    _decoder: Decoder | None = None  # computes in PyTorch's place
    boundary: bool | None = None  # whether step() updates; None: after as many micro-batches as the configuration says

    def __init__(
        self,
        module: torch.nn.Module,
        config: Config,
        *,
        parameters: Iterable[Any] | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        save: str | os.PathLike[str] | None = None,
        machine: Machine | None = None,
        overrides: Mapping[str, Any] | None = None,
        max_steps: int = 0,
        overlap: bool = False,
        overwrite: bool = False,
        allow_unknown: bool = False,
        layers: str | Sequence[str] | None = None,
        example: Any = None,
        boundary_bytes: int = 0,
        compute: str | None = None,
        seq_len: int = 0,
    ) -> None:
        super().__init__()
        if not isinstance(module, torch.nn.Module):
            raise TypeError(f"Engine() takes a torch.nn.Module, not {type(module).__name__}")
        self._turn = Turn()
        keys = Keys(config, overrides, overlap)
        overlap = keys.overlap
        changes: dict[str, Any] = {**(overrides or {}), **keys.changes()}
        if save is not None:
            changes["strata.save"] = os.path.abspath(os.fspath(save))
        if optimizer is not None:
            changes["optimizer"] = rule_of(optimizer)
        given = groups_of(parameters if optimizer is None else optimizer.param_groups, module)
        numbers = {p: i for i, group in enumerate(given) for p in group["params"]}
        _refuse_taken(module)
        unchanged(module.parameters())
        comm = meet()
        settings = settings_of(config, changes, max_steps=max_steps, comm=comm, allow_unknown=allow_unknown)
        keys.check_groups(module, given, settings["optimizer"]["params"].get("weight_decay", 0.0))
        self._lines = lines_of(settings, overwrite) if comm is None or comm.rank == 0 else None
        self._max_steps = max_steps
        self._decoder = decoder_of(
            module,
            config,
            settings,
            given,
            compute=compute,
            seq_len=seq_len,
            torch_only="layers are named" if layers is not None else "there are several ranks" if comm is not None else None,
            overrides={**changes, **keys.decoders()},
            machine=machine,
            max_steps=max_steps,
            allow_unknown=allow_unknown,
        )
        paged = layers is not None or settings["zero_optimization"]["offload_param"]["device"] != "none"
        pages = paged and self._decoder is None
        if pages and overlap:
            raise ValueError("overlap, or strata.update gated: layers that page are updated before the next step; leave it out")
        named = layers is not None or example is not None or boundary_bytes != 0
        if example is None:
            boundary_bytes = boundary_bytes or settings["strata"].get("boundary_bytes", 0)
        self._pager: Pager | None = None
        self._open: Layers | None = self._decoder
        if self._decoder is not None:
            self._kept = self._decoder.kept
            keys.tell(DECODER, module, comm is None)
        else:
            try:
                ordered = measured(module, layers, example, boundary_bytes, dtype_of(settings)) if pages else blocks_of(module)
            except ValueError as error:
                if named:
                    raise
                logging.getLogger("strata").warning("weights stay resident in spite of offload_param: %s", error)
                ordered, pages = [], False
            keys.tell(PAGED if pages else RESIDENT, module, comm is None or comm.rank == 0)
            pieces, self._kept, modules = cut(
                module, numbers, {o.module: o.boundary_bytes for o in ordered}, resident=not pages
            )
            self._open = Layers(
                config,
                pieces,
                overrides=changes,
                groups=[Group() for _ in given],
                machine=machine,
                comm=comm,
                max_steps=max_steps,
                overwrite=True,  # Saves looks whose they are
                allow_unknown=allow_unknown,
                caller_threads=torch.get_num_threads() if overlap else 0,
                name=type(module).__name__[:63],
            )
        self._device = device_of(machine, self._kept)
        self._by_parameter = {k.parameter: k for k in self._kept}
        self.settings = self._layers.config  # in force
        self.accumulation = int(self._layers.model.info.grad_accum)
        schedule = self.settings["strata"].get("lr_scheduler", {}).get("type", "none")
        self._scheduled = schedule != "none" or bool(self.settings.get("scheduler", {}).get("type"))
        rule = self.settings["optimizer"]["params"]
        defaults = {"weight_decay": rule.get("weight_decay", 0.0)}
        self.optimizer = Optimizer(self, [{**defaults, **group} for group in given], optimizer)
        self.grad_norm: float | None = None
        self.loss_scale = float(self._layers.info.loss_scale)  # the next step's
        self._steps = int(self._layers.info.steps)  # that were made, also while one is under way
        self._scale = 1.0  # of the losses of the step under way
        self.overflow = False
        self.last_step: Step | None = None
        self._sums: dict[torch.nn.Parameter, torch.Tensor] = {}
        self._sums_at: dict[int, int] = {}
        self._losses: list[float] = []  # of the step's micro-batches
        self._inside = self._backing = self._micro_over = False
        self._given_up = False  # a step, since the last backward()
        self._micro_steps = 0  # since the last update
        self._saves = Saves(self.settings["strata"].get("save") or "", overwrite)
        if comm is not None:
            share((*module.parameters(), *module.buffers()), 0)
        if self._decoder is None:
            place(self, module)
        self.module = module
        if pages:
            self._pager = Pager(self, modules)
        self._hooks: list[Any] = [
            k.parameter.register_post_accumulate_grad_hook(Hook(self, None))  # type: ignore[no-untyped-call]
            for k in self._kept
            if k.group is not None and self._decoder is None
        ]
        self._overlap = Behind(self) if self._decoder is not None else Overlap(self) if overlap else None
        _engines.add(self)
        watch_clipping(_engines)
        refs = [weakref.ref(k.parameter) for k in self._kept if k.away is None and self._decoder is None]
        self._end = weakref.finalize(self, part, refs, self._hooks, self._layers, os.getpid())
        if self._lines is not None:
            weakref.finalize(self, self._lines.end)
        self._left: weakref.finalize[..., Engine] | None = None
        if self._pager is not None:  # before the end, but at exit nobody is left to read what pages
            self._left = weakref.finalize(self, leave, self._pager, self._layers, os.getpid())
            self._left.atexit = False

    # --- the module ---

    @property
    def _stream(self) -> int:
        """That PyTorch computes on."""
        return 0 if self._device.type == "cpu" else int(torch.cuda.current_stream(self._device).cuda_stream)

    def await_weights(self, layers: frozenset[int] | None) -> None:
        """With overlap: of these layers; None: whatever the module as a whole needs."""
        if self._overlap is not None:
            self._overlap.await_weights(self, layers)

    @property
    def _layers(self) -> Layers:
        self._refuse_ended()
        assert self._open is not None
        return self._open

    def _refuse_ended(self) -> None:
        if self._open is None:
            raise RuntimeError("this engine is destroyed")

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._decoder is None or not self.module.training or not torch.is_grad_enabled():
            return self.module(*args, **kwargs)
        return self._decode(self._decoder, *args, **kwargs)

    @alone
    def _decode(self, decoder: Decoder, *args: Any, **kwargs: Any) -> Any:
        self._refuse_ended()
        check(self)
        call = decoder.taken(self.module, args, kwargs)
        try:
            self._begin()
            return call()
        except BaseException:
            self._given_up = True
            self.drop()
            raise

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
            module = super().__getattr__("module")
            if not hasattr(module, name):
                raise self._absent(name) from None
            return getattr(module, name)

    def _absent(self, name: str) -> AttributeError:
        return AttributeError(f"{type(self).__name__} has no attribute {name!r}, and neither has its module")

    @alone
    def follow(self, everything: bool = True) -> None:
        """Masters follow weights that were set from outside, where their bits differ.  Each step does that by itself for what
        PyTorch has counted: in-place operations, load_state_dict().  Of what was written through p.data it knows nothing, which
        matters in 16 bits."""
        kept = ((i, k) for i, k in enumerate(self._kept) if k.away is None)
        self._write([i for i, k in kept if everything or k.parameter._version != k.version])

    def _write(self, changed: list[int]) -> None:
        if self._layers.comm is not None:
            self._layers.flush()  # else ranks may still exchange what they have updated
            told = zlib.crc32(repr(changed).encode()).to_bytes(4, "little")
            if len(set(self._layers.comm.gather(told, "weights that were set"))) > 1:
                raise RuntimeError("ranks have set the weights of different parameters: set them alike on all ranks")
        for i in changed:
            k = self._kept[i]
            if self._decoder is not None and self._overlap is not None and self._overlap.pending:
                raise RuntimeError(f"{k.name} was set when the module had the weights of an earlier step: flush() comes before")
            if k.away is None and k.parameter.dtype == torch.float32:  # which may be its own master
                self._saves.changed()
            for first, weight in pieces_of(k.parameter.detach()):
                wanted = followed(read(self._layers, i, first, weight.numel()), weight.cpu())
                if wanted is not None:
                    self._saves.changed()
                    k.file = None
                    self._layers.write(i, "WEIGHT", wanted.data_ptr(), first=first, elems=wanted.numel())
                release([weight])
            k.version = k.parameter._version

    # --- a step ---

    def _begin(self) -> None:
        if self._inside:
            return
        if self._pager is not None:
            self._pager.begin()
        self.follow(everything=False)
        self._losses = []
        if self._overlap is not None:
            self._overlap.begin()
        self._micro_over, self._inside = False, True  # before begin(): Ctrl-C may come behind it
        self._scale = self._layers.begin(stream=self._stream)

    def _micro(self) -> None:
        """A micro-batch, unless one is under way: its sums may lie elsewhere than those of the last."""
        if self._losses and not self._micro_over:
            return
        if self._losses and len(self._losses) < self.accumulation:
            self._micro_end()
        if not self._losses or len(self._losses) < self.accumulation:
            self._losses.append(0.0)
        self._micro_over = False
        if self._decoder is not None:
            return
        sums = {}
        resident = {t.layer for k, t in zip(self._kept, self._layers.tensors) if t.group is not None and k.away is None}
        for layer in sorted(resident):
            sums[layer] = self._layers.use(self._layers.BACKWARD, layer).sum or 0
        if sums != self._sums_at:
            self._sums = {
                k.parameter: over(sums[t.layer] + 4 * t.sum_at, k.parameter.shape, torch.float32, self._layers, self._device)
                for k, t in zip(self._kept, self._layers.tensors)
                if t.layer in sums and t.group is not None
            }
            self._sums_at = sums  # after them: Ctrl-C may come between

    def _micro_end(self) -> None:
        if self._pager is not None:
            self._pager.finish()
        self._layers.micro_end()

    def _gradient(self, parameter: torch.nn.Parameter) -> None:
        if not self._backing:  # of another backward: step() refuses it
            return
        grad, parameter.grad = parameter.grad, None
        if grad is not None:
            if grad.is_sparse:
                raise ValueError(f"{self._by_parameter[parameter].name}: sparse gradients are not supported: use sparse=False")
            if self._overlap is not None:
                self._overlap.check(parameter, self._by_parameter[parameter].name)
            if parameter not in self._sums:
                raise RuntimeError(
                    f"{self._by_parameter[parameter].name} pages, and its gradient comes from outside of its layer"
                )
            self._sums[parameter].add_(grad.detach())

    @alone
    def backward(self, loss: torch.Tensor, *, divide: bool = True, **autograd: Any) -> None:
        """loss.backward(), whose gradients the engine adds up; several within a micro-batch are added.

        divide    by the number of micro-batches of a step
        autograd  further arguments of Tensor.backward(), such as retain_graph

        What is raised within it drops the step: the weights stay as they were.
        """
        self._refuse_ended()
        check(self)
        try:
            self._given_up = False
            if self._decoder is not None:
                self._decoder.check_loss(self.module, loss)
            self._begin()
            self._micro()
            loss = loss / self.accumulation if divide else loss
            self._backing = True
            torch.autograd.backward(loss * self._scale if self._scale != 1 else loss, **autograd)
            self._losses[-1] += float(loss.detach())
        except BaseException:
            self._backing, self._given_up = False, True
            self.drop()
            raise
        self._backing = False
        self._micro_over = self.boundary is not None

    @alone
    def step(self) -> Step | None:
        """After the last micro-batch of a step: clip, update, and return how it went; None after the others.

        What is raised within it before the update drops the step.
        """
        self._refuse_ended()
        if self._given_up:
            self._given_up = False
            raise RuntimeError("the step was dropped with its gradients, and nothing is updated: begin again with backward()")
        self._micro_over = True
        self._micro_steps += 1
        if not (self._micro_steps % self.accumulation == 0 if self.boundary is None else self.boundary):
            return None
        groups = self.optimizer.param_groups
        rates: dict[str, Any] = {"weight_decay": [float(group["weight_decay"]) for group in groups]}
        if not self._scheduled:
            rates.update(lr=[float(group["lr"]) for group in groups], **self.optimizer.betas())
        try:
            check(self)
            self._begin()
            self._micro()
            for _ in range(len(self._losses), self.accumulation + 1):
                self._micro_end()
            losses = self._losses + [0.0] * (self.accumulation - len(self._losses))
            step = self._layers.end(losses, 1, **rates)
        except BaseException:
            with suppress(Error):  # it has ended: Ctrl-C came meanwhile, or the engine has failed
                self._layers.drop()
                self._given_up = True
            raise
        finally:
            self._close_step()
        self._told(step)
        return step

    def _told(self, step: Step) -> None:
        if self._lines is not None and not step.dropped:
            self._lines.step(lambda: self._layers.header(self._max_steps), self._layers.line())
        self.last_step, self.overflow = step, step.skipped
        self.grad_norm = step.grad_norm
        if self._scheduled and not step.skipped:
            for group in self.optimizer.param_groups:
                group["lr"] = step.lr
        self.optimizer.stepped()
        self._saves.look(self._layers)

    def _close_step(self) -> None:
        """Also of a step that has failed, which may have been made."""
        self._inside, self._micro_steps = False, 0
        with suppress(Error):  # where the step could not even be dropped
            info = self._layers.info
            self.loss_scale, self._steps = float(info.loss_scale), int(info.steps)
        if self._overlap is not None:
            self._overlap.pending = True
        for k in self._kept:
            if k.group is not None:
                torch.autograd.graph.increment_version(k.parameter)
            k.version = k.parameter._version

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """What PyTorch's function does with this engine's parameters: the norm of the last step, or a refusal."""
        clipping = float(self.settings.get("gradient_clipping", 0))
        if float(norm_type) != 2 or float(max_norm) != clipping:
            raise ValueError(
                f"clip_grad_norm_({max_norm}, norm_type={norm_type}) finds no gradients of an engine's, whose step() clips at "
                f"gradient_clipping {clipping:g}: set that in the configuration"
            )
        return torch.tensor(float("nan") if self.grad_norm is None else self.grad_norm)

    @alone
    def drop(self) -> None:
        """Give up the step that is under way, with what its micro-batches have brought: the weights stay as they were."""
        if self._pager is not None:
            self._pager.settle()
        if not self._inside:
            return
        for k in self._kept:
            k.parameter.grad = None
        try:
            self._layers.drop()
        except Error as error:
            if error.status != "E_INVAL":  # begin() was interrupted before there was one
                raise
        finally:
            self._given_up = self._given_up or bool(self._losses)
            self._inside, self._micro_steps = False, 0

    def _outside(self) -> None:
        if self._inside and self._losses:
            logging.getLogger("strata").warning("the %d micro-batches of the step under way are dropped", len(self._losses))
        self.drop()

    @alone
    def flush(self) -> None:
        """Nothing is pending after it; a step that is under way is dropped."""
        self._refuse_ended()
        self._outside()
        self._layers.flush()
        if self._overlap is not None:
            self._overlap.pending = False

    def gathered(
        self, parameters: torch.nn.Parameter | Iterable[torch.nn.Parameter] | None = None
    ) -> AbstractContextManager[None]:
        """Between steps: a context within which parameters that page (None: all) have memory; what is changed there is kept."""
        if self._pager is None:
            return nullcontext()
        wanted = [parameters] if isinstance(parameters, torch.nn.Parameter) else parameters
        return self._pager.gathered(self._by_parameter if wanted is None else wanted)

    # --- checkpoints ---

    def save(
        self, directory: str | os.PathLike[str], tag: str | None = None, client_state: Any = None, *, latest: bool = True
    ) -> Path:
        """Save the run as DIRECTORY/TAG: a checkpoint of strata's, and beside it buffers, groups, random states and
        `client_state`.  The checkpoint's files follow beside training: saved(wait=True) waits for them.  latest: load() takes
        it where no other is named.  Between the micro-batches of a step it has the weights before that, which goes on."""
        return self._save(directory, tag, lambda: client_state, latest)

    @alone
    def _save(self, directory: str | os.PathLike[str], tag: str | None, client_state: Callable[[], Any], latest: bool) -> Path:
        self._refuse_ended()
        if not self.settings["strata"].get("save"):
            raise ValueError("no directory of checkpoints was named when the engine was made: save=, or strata.save")
        comm, error = self._layers.comm, None
        try:
            asked, beside = prepared(self, directory, tag, client_state, latest)
        except Exception as raised:
            error = raised
            if comm is None:
                raise
        with held(self):
            self._saves.look(self._layers, wait=True)
            self.follow(everything=False)
            agree(comm, error, "what a checkpoint is asked for")
            if self._saves.is_taken(self._layers):  # a step that is dropped gives the next name
                self._layers.begin()
                self._layers.drop()
            beside["random"] = random_states()
            self._saves.save(self._layers, asked, beside)
            self.saved()
            return asked.place

    @alone
    def saved(self, wait: bool = False) -> bool:
        """Whether the last save is whole on the disk.  One that has failed is raised here, once, and is a warning before."""
        if self._open is None:
            return True
        if not self._inside:
            return self._saves.saved(self._open, wait)
        if not wait or self._saves.told():
            return self._saves.told()
        with held(self):
            return self._saves.saved(self._open, wait)

    @alone
    def load(
        self,
        directory: str | os.PathLike[str],
        tag: str | None = None,
        *,
        random_states: bool = True,
        trusted: bool = False,
        weights_only: bool = False,
        strict: bool = True,
    ) -> Any:
        """Go on from what save() has written, the newest or `tag`; returns its client_state.

        trusted       the client_state may have objects of any class, whose making runs what the file says
        weights_only  weights and buffers by their names alone: moments, steps and groups stay this run's
        strict        these names are the module's; else what is missing there or here is left as it is

        What does not fit, or is damaged, is refused before anything is changed.
        """
        self._refuse_ended()
        self._saves.look(self._layers, wait=True)
        self._outside()
        if self._layers.comm is not None:
            with suppress(Error):  # a load before has failed
                self._layers.flush()  # else ranks may still exchange what they have updated
        agree(self._layers.comm, None, "a checkpoint that is loaded")  # rank 0 has linked it
        if weights_only:
            return load_weights(self, Path(directory), tag, strict, trusted)
        return load_all(self, Path(directory), tag, random_states, trusted)

    def check_client_state(self, client_state: Any, place: Path) -> None:
        """Raises where load() is not to take a checkpoint with it, before anything is changed."""

    def destroy(self) -> None:
        """End the engine; the parameters take their values with them.  More than once is fine."""
        try:
            if self._end.alive:
                with suppress(Error):  # which has ended it
                    self.flush()
                self.saved(wait=True)
        finally:
            _engines.discard(self)
            if self._lines is not None:
                self._lines.end()
            if self._left is not None and self._left.detach() is not None and self._pager is not None:
                self._pager.part(self._layers)
            self._end()
            self._sums, self._open = {}, None  # closed when no tensor lies in it any more


def _refuse_taken(module: torch.nn.Module) -> None:
    for collected in (False, True):
        named = {p: name for name, p in module.named_parameters()}
        taken = next((named[p] for engine in _engines for p in engine._by_parameter if p in named), None)
        if taken is None:
            return
        if not collected:  # of an engine that nobody has any more
            gc.collect()
    raise RuntimeError(f"{taken} is in the pages of another engine: destroy() that one first")
