"""Layers of a module whose weights page: each runs between enter and leave, forward twice, and keeps its input in between.

A layer's forward is replaced.  With gradients it is an autograd function: it runs, and in backward again, and what its graph
then brings for parameters goes to the engine's sums.  The first run has a graph, too, which ends with it: without one PyTorch
may take other kernels, whose bits differ (attention with dropout, or with a bias that is trained).  Without gradients it runs
once, in an evaluation of the engine.  Elsewhere the layer's parameters have shape and dtype, but no memory.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import get_device_states, set_device_states

from ..errors import Error
from ..layers import Layers, Placed, View
from .mapped import Room, copied, release
from .pages import DTYPES, Kept, over, pieces_of, put, read

if TYPE_CHECKING:
    from .engine import Engine

_log = logging.getLogger("strata")

_RULE = "in each micro-batch layers run once each, in their order, and then engine.backward() (strata.torch.trace() shows them)"


@dataclass
class _Layer:
    """An ordered layer."""

    name: str
    module: torch.nn.Module
    number: int  # of the engine's layers
    index: int  # in the order
    plain: Any  # the forward that the module had
    rows: list[tuple[Kept, Placed]]

    @property
    def trained(self) -> bool:
        return any(placed.group is not None for _, placed in self.rows)


@dataclass
class _Call:
    """A call of a layer with gradients: its arguments without tensors, and what its result was."""

    pager: Pager
    layer: _Layer
    leaves: list[Any]
    spec: Any
    casts: list[tuple[str, bool, torch.dtype]]
    side: list[int]  # tensors that need gradients, beside the first one: they come out again for the next layer (Pager._side)
    result: list[Any] = field(default_factory=list)
    result_spec: Any = None

    def run(self, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """The layer's forward; returns the tensors of its result."""
        given = iter(tensors)
        args, kwargs = tree_unflatten([next(given) if leaf is _HERE else leaf for leaf in self.leaves], self.spec)
        with _uncached(self.casts):
            made, self.result_spec = tree_flatten(self.layer.plain(*args, **kwargs))
        _check_leaves(self.layer, made, "returns")
        self.result = [_HERE if isinstance(leaf, torch.Tensor) else leaf for leaf in made]
        return [leaf for leaf in made if isinstance(leaf, torch.Tensor)]


_HERE = object()  # a tensor's place among the leaves of a call


class Pager:
    """The ordered layers of an engine."""

    def __init__(self, engine: Engine, modules: Sequence[torch.nn.Module | None]) -> None:
        """modules: of the engine's layers; None: a resident one."""
        self._known = weakref.ref(engine)
        on_drive = engine.settings["zero_optimization"]["offload_param"]["device"] == "nvme"
        self._room = Room(engine.settings["strata"]["nvme"][0] if on_drive else None)
        placed = list(zip(engine._kept, engine._layers.tensors))
        names = {m: name for name, m in engine.module.named_modules()}
        self._order: list[_Layer] = []
        for number, module in enumerate(modules):
            if module is not None:
                rows = [(k, t) for k, t in placed if t.layer == number]
                self._order.append(_Layer(names[module], module, number, len(self._order), module.forward, rows))
        self._at = 0  # passes of the micro-batch that are over
        self._recorded: set[int] = set()  # layers that have a backward in it
        # What the last layer was given at the side, and what came out of it.  The next one takes that where it is given the
        # same, so that gradients of a tensor that many layers use are added one by one, as they are without paging.
        self._side: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._lent: set[int] = set()  # parameters that are gathered
        self._evaluated: int | None = None  # layers that are over in the evaluation under way
        self._told: set[str] = set()
        self._hooks: list[Any] = [engine.module.register_forward_pre_hook(self._before, with_kwargs=True)]
        for layer in self._order:
            layer.module.forward = partial(self.run, layer)
            for inner in layer.module.modules():  # a method takes no mark of PyTorch's
                self._hooks += (
                    inner.register_state_dict_post_hook(partial(self._saves)),  # type: ignore[no-untyped-call]
                    inner.register_load_state_dict_pre_hook(partial(self._loads)),  # type: ignore[no-untyped-call]
                    inner.register_load_state_dict_post_hook(partial(self._loaded)),  # type: ignore[no-untyped-call]
                )

    @property
    def _engine(self) -> Engine:
        engine = self._known()
        if engine is None:
            raise RuntimeError("this engine is destroyed")
        return engine

    def _say(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            _log.warning(text)

    def _before(self, module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        """Of the whole module, before its forward."""
        if not torch.is_grad_enabled():
            return
        for m in module.modules():
            if getattr(m, "gradient_checkpointing", False) is True:
                m.gradient_checkpointing = False  # type: ignore[assignment]
                self._say("gradient checkpointing is turned off: layers that page compute forward again by themselves")
        config = getattr(module, "config", None)
        if kwargs.get("output_router_logits", getattr(config, "output_router_logits", False)):
            raise ValueError("output_router_logits: a loss of router logits has no gradient where layers page: turn it off")

    # --- passes ---

    def run(self, layer: _Layer, *args: Any, **kwargs: Any) -> Any:
        """What the layer's forward is."""
        if not torch.is_grad_enabled():
            return self._evaluates(layer, args, kwargs)
        try:
            return self._trains(layer, args, kwargs)
        except BaseException:
            self._engine.drop()
            raise

    def _wanted(self) -> tuple[int, int] | None:
        """Direction and index of the next pass; None: the micro-batch has no more."""
        count = len(self._order)
        if self._at < count:
            return Layers.FORWARD, self._at
        while self._at < 2 * count and 2 * count - 1 - self._at not in self._recorded:
            self._at += 1
        return None if self._at == 2 * count else (Layers.BACKWARD, 2 * count - 1 - self._at)

    def _expect(self, direction: int, layer: _Layer) -> None:
        wanted = self._wanted()
        if wanted == (direction, layer.index):
            return
        runs = "backward" if direction == Layers.BACKWARD else "forward"
        raise RuntimeError(f"{layer.name} runs {runs}, and {self._next(wanted)} was expected: {_RULE}")

    def _next(self, wanted: tuple[int, int] | None) -> str:
        if wanted is None:
            return "engine.step()"
        return f"{'backward' if wanted[0] == Layers.BACKWARD else 'forward'} of {self._order[wanted[1]].name}"

    def finish(self) -> None:
        """The micro-batch ends: one that nothing ran in goes through all layers; one that is not over is refused."""
        if self._at == 0:
            for direction, layers in ((Layers.FORWARD, self._order), (Layers.BACKWARD, self._order[::-1])):
                for layer in layers:
                    self._engine._layers.enter(direction, layer.number)
                    self._engine._layers.leave()
        elif (wanted := self._wanted()) is not None:
            raise RuntimeError(f"the step ends, and {self._next(wanted)} was expected: {_RULE}")
        self._at, self._recorded, self._side = 0, set(), {}

    def begin(self) -> None:
        """A step begins."""
        self.settle()
        self._at, self._recorded, self._side = 0, set(), {}

    @contextmanager
    def _entered(self, direction: int, layer: _Layer) -> Iterator[View]:
        """The layer's parameters lie in its page, and their gradients go to its sums."""
        engine = self._engine
        for k, _ in layer.rows:
            if not k.is_there:
                raise RuntimeError(
                    f"{k.name} lies elsewhere than in the engine's pages: p.data = x is not possible with an engine"
                )
        view = engine._layers.enter(direction, layer.number)
        try:
            with torch.inference_mode(False):
                for k, t in layer.rows:
                    shape = k.parameter.shape
                    k.parameter.data = over(view.weights + t.weight_at, shape, DTYPES[t.dtype], engine._layers, engine._device)
                    if view.sum is not None and t.group is not None:
                        engine._sums[k.parameter] = over(
                            view.sum + 4 * t.sum_at, shape, torch.float32, engine._layers, engine._device
                        )
            yield view
        finally:
            for k, _ in layer.rows:
                assert k.away is not None
                k.parameter.data = k.away
                engine._sums.pop(k.parameter, None)
            engine._layers.leave()
            self._at += 1

    def _trains(self, layer: _Layer, args: Any, kwargs: Any) -> Any:
        engine = self._engine
        if layer.index == 0 and (not engine._inside or (engine._micro_over and self._wanted() is None)):
            if engine._inside and len(engine._losses) == engine.accumulation:
                raise RuntimeError(f"a step has {engine.accumulation} micro-batches, and engine.step() was expected")
            engine._begin()
            engine._micro()
        self._expect(Layers.FORWARD, layer)
        leaves, spec = tree_flatten((args, kwargs), is_leaf=_is_cache)
        leaves = [None if _is_cache(leaf) else leaf for leaf in leaves]
        _check_leaves(layer, leaves, "is given")
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        leaves = [_HERE if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        side = [i for i, t in enumerate(tensors) if t.requires_grad and i != _first(tensors)]
        call = _Call(self, layer, leaves, spec, _casts(), side)
        versions = [t._version for t in tensors]
        if layer.trained or any(t.requires_grad for t in tensors):
            anchor = torch.empty(0, requires_grad=layer.trained)  # the graph goes on where no input needs a gradient
            passed = [self._side.get(id(t), (t, t))[1] for t in tensors]
            made: Sequence[torch.Tensor] = _Run.apply(call, anchor, *passed)
            self._side = {id(tensors[i]): (tensors[i], t) for i, t in zip(side, made[len(made) - len(side) :])}
            self._recorded.add(layer.index)
        else:
            with torch.no_grad(), self._entered(Layers.FORWARD, layer) as view:
                made = [_own(t, layer, view) for t in call.run(tensors)]
        if versions != [t._version for t in tensors]:
            raise RuntimeError(f"{layer.name} changes what it is given in place, and runs twice: let it make a new tensor")
        given = iter(made)
        leaves = [next(given) if leaf is _HERE else leaf for leaf in call.result]
        return tree_unflatten(leaves, call.result_spec)

    def _evaluates(self, layer: _Layer, args: Any, kwargs: Any) -> Any:
        """A pass of an evaluation, which goes through all layers in their order and begins again where one is needed twice."""
        engine = self._engine
        if self._lent.issuperset(k.index for k, _ in layer.rows):
            return layer.plain(*args, **kwargs)
        if engine._inside:
            return self._evaluates_within(layer, args, kwargs)
        if self._evaluated is not None and self._evaluated > layer.index:
            self.settle()
        if self._evaluated is None:
            engine.follow(everything=False)
            engine._layers.begin(evaluates=True, micros=1, stream=engine._stream)
            self._evaluated = 0
        for other in self._order[self._evaluated : layer.index]:
            engine._layers.enter(Layers.FORWARD, other.number)
            engine._layers.leave()
        self._evaluated = layer.index + 1
        with self._entered(Layers.FORWARD, layer) as view, _uncached(_casts()):
            leaves, spec = tree_flatten(layer.plain(*args, **kwargs), is_leaf=_is_cache)
            made = tree_unflatten([_own(t, layer, view) for t in leaves], spec)
        if self._evaluated == len(self._order):
            self._evaluated = None
            engine._layers.micro_end()
            engine._layers.end()
        return made

    def _evaluates_within(self, layer: _Layer, args: Any, kwargs: Any) -> Any:
        """Within a step weights come in their order alone: frozen ones can be read from the file that they are of."""
        try:
            for k, _ in layer.rows:
                if k.file is not None:
                    k.parameter.data = copied(k.file).to(self._engine._device)
            with _uncached(_casts()):
                return layer.plain(*args, **kwargs)
        except RuntimeError as error:
            named = next((k.name for k, _ in layer.rows if f"{k.name} is paged" in str(error)), None)
            if named is None:
                raise
            raise RuntimeError(
                f"{layer.name} runs without gradients within a step, where {named} cannot be read: evaluate after "
                "engine.step() or engine.drop(), or before training (TRL: precompute_ref_log_probs=True); layers can whose "
                "weights are frozen, and come from a file of safetensors within zero.Init"
            ) from None
        finally:
            for k, _ in layer.rows:
                if k.file is not None:
                    assert k.away is not None
                    k.parameter.data = k.away
                    release([k.file])

    def settle(self) -> None:
        """An evaluation that is under way ends."""
        if self._evaluated is not None:
            self._evaluated = None
            self._engine._layers.drop()

    # --- weights between steps ---

    def part(self, layers: Layers) -> None:
        """The engine ends: layers run as they did before it, and their parameters take their values with them."""
        for layer in self._order:
            del layer.module.forward
            if layer.module.forward != layer.plain:  # it had one of its own
                layer.module.forward = layer.plain
        for hook in self._hooks:
            hook.remove()
        kept = [k for layer in self._order for k, _ in layer.rows if k.away is not None and k.is_there]
        try:
            for k in kept:
                k.parameter.data = self._values(layers, k)
        except (Error, OSError) as error:
            _log.warning("weights of layers that page are gone with their engine: %s", error)

    @contextmanager
    def gathered(self, parameters: Iterable[torch.nn.Parameter]) -> Iterator[None]:
        """Within it these parameters have memory; what was changed is written when it ends."""
        engine = self._engine
        self._outside()
        rows = []
        for p in parameters:
            k = engine._by_parameter.get(p)
            if k is None:
                raise ValueError(f"a parameter of shape {tuple(p.shape)} is not of this engine")
            if k.away is not None and p.is_set_to(k.away):
                p.data = self._values(engine._layers, k).to(engine._device)
                rows.append(k)
        self._lent |= {k.index for k in rows}
        try:
            yield
            engine._write([k.index for k in rows])
        finally:
            self._lent -= {k.index for k in rows}
            for k in rows:
                assert k.away is not None
                k.parameter.data = k.away

    def _outside(self) -> None:
        if self._engine._inside:
            raise RuntimeError("weights that page are read and written between steps: after engine.step() or engine.drop()")
        self.settle()

    def _values(self, layers: Layers, k: Kept) -> torch.Tensor:
        with torch.inference_mode(False):
            made = self._room.tensor(k.parameter.shape, k.parameter.dtype)
            for first, part in pieces_of(made):
                put(read(layers, k.index, first, part.numel()), part, k.group is not None)
            release([made])
            return made

    def _paged(self, module: torch.nn.Module) -> Iterator[tuple[str, Kept]]:
        engine = self._known()
        for name, p in module._parameters.items():
            k = None if engine is None or p is None else engine._by_parameter.get(p)
            if k is not None and k.away is not None:
                yield name, k

    def _saves(self, module: torch.nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
        for name, k in self._paged(module):
            if k.away is not None and k.parameter.is_set_to(k.away):
                self._outside()
                state[prefix + name] = self._values(self._engine._layers, k)

    def _loads(self, module: torch.nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        for name, k in self._paged(module):
            if prefix + name in state:
                self._outside()
                k.parameter.data = self._values(self._engine._layers, k)

    def _loaded(self, module: torch.nn.Module, _: Any) -> None:
        for _, k in self._paged(module):
            if k.away is not None and not k.parameter.is_set_to(k.away):
                self._engine._write([k.index])
                k.parameter.data = k.away


class _Run(torch.autograd.Function):
    """A layer: its tensors in, its tensors out."""

    @staticmethod
    def forward(ctx: Any, call: _Call, anchor: torch.Tensor, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        layer = call.layer
        with call.pager._entered(Layers.FORWARD, layer) as view:
            ctx.place = _kept(call, view, tensors)
            ctx.devices, ctx.states = get_device_states(*tensors)
            ctx.random = torch.get_rng_state()
            inputs = _leaves(ctx, tensors)
            with torch.enable_grad():
                run = call.run([_Inner.apply(layer.name, t) if t.requires_grad else t for t in inputs])
            made = tuple(_own(t.detach(), layer, view) for t in run)
            ctx.mark_non_differentiable(*(t for t, origin in zip(made, run) if not origin.requires_grad))
            del run, inputs
        ctx.call = call
        if ctx.place is not None:
            ctx.shape, ctx.dtype = tensors[ctx.place].shape, tensors[ctx.place].dtype
        ctx.save_for_backward(*(t for i, t in enumerate(tensors) if i != ctx.place))
        ctx.set_materialize_grads(False)
        return *made, *(tensors[i] for i in call.side)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        call: _Call = ctx.call
        pager, layer = call.pager, call.layer
        if not pager._engine._backing:
            pager._engine.drop()
            raise RuntimeError(f"{layer.name} pages: call engine.backward(loss), not loss.backward()")
        pager._expect(Layers.BACKWARD, layer)
        with pager._entered(Layers.BACKWARD, layer) as view:
            kept = list(ctx.saved_tensors)
            if ctx.place is not None:
                engine = pager._engine
                kept.insert(ctx.place, over(view.boundary or 0, ctx.shape, ctx.dtype, engine._layers, engine._device))
            inputs = _leaves(ctx, kept)
            with torch.enable_grad(), torch.random.fork_rng(ctx.devices):
                torch.set_rng_state(ctx.random)
                set_device_states(ctx.devices, ctx.states)
                given = [t.view_as(t) if i in call.side else t for i, t in enumerate(inputs)]
                made = call.run(given) + [given[i] for i in call.side]
            pairs = [(t, grad) for t, grad in zip(made, grads) if t.requires_grad and grad is not None]
            if pairs:
                torch.autograd.backward([t for t, _ in pairs], [grad for _, grad in pairs])
            del given, made, pairs
        return None, None, *(t.grad for t in inputs)


class _Inner(torch.autograd.Function):
    """Where the graph of the first run begins, which ends with it: to differentiate what was kept of it is refused."""

    @staticmethod
    def forward(ctx: Any, name: str, tensor: torch.Tensor) -> torch.Tensor:
        ctx.name = name
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise RuntimeError(
            f"{ctx.name} pages: what a hook or a module has kept of its forward, such as attentions or router logits, has no "
            "gradient"
        )


def _leaves(ctx: Any, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Where the graph of one run begins."""
    return [t.detach().requires_grad_(needs) for t, needs in zip(tensors, ctx.needs_input_grad[2:])]


def _kept(call: _Call, view: View, tensors: Sequence[torch.Tensor]) -> int | None:
    """The place of the input that was copied to the layer's boundary: the first one of numbers, if there is room."""
    place = _first(tensors)
    if place is None or view.boundary is None:
        return None
    first = tensors[place].detach()
    if first.nbytes > view.boundary_bytes:
        call.pager._say(
            f"{call.layer.name} is given {first.nbytes} bytes, more than a boundary of {view.boundary_bytes}: "
            "PyTorch keeps them"
        )
        return None
    if not first.is_contiguous():
        return None
    engine = call.pager._engine
    over(view.boundary, first.shape, first.dtype, engine._layers, engine._device).copy_(first)
    return place


def _first(tensors: Sequence[torch.Tensor]) -> int | None:
    return next((i for i, t in enumerate(tensors) if t.is_floating_point()), None)


def _own(made: Any, layer: _Layer, view: View) -> Any:
    """A result that lies in the layer's page gets memory of its own."""
    if not isinstance(made, torch.Tensor) or made.numel() == 0:
        return made
    end = max(t.weight_at + t.elems * DTYPES[t.dtype].itemsize for _, t in layer.rows)
    return made.clone() if 0 <= made.data_ptr() - view.weights < end else made


def _is_cache(leaf: Any) -> bool:
    """Of keys and values, by transformers."""
    return any(kind.__name__ == "Cache" for kind in type(leaf).__mro__)


def _check_leaves(layer: _Layer, leaves: Iterable[Any], what: str) -> None:
    """Tensors that need gradients are seen in tuples, lists, dicts and transformers' outputs, not in other objects."""
    for leaf in leaves:
        for name, value in getattr(leaf, "__dict__", {}).items() if not isinstance(leaf, torch.Tensor) else ():
            if isinstance(value, torch.Tensor) and (value.requires_grad or what == "returns"):
                raise ValueError(f"{layer.name} {what} a {type(leaf).__name__}, whose {name} is a tensor: pass it by itself")


def _casts() -> list[tuple[str, bool, torch.dtype]]:
    """How autocast is set."""
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    return [(device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in devices]


@contextmanager
def _uncached(casts: list[tuple[str, bool, torch.dtype]]) -> Iterator[None]:
    """Autocast so set, but no cast of a weight is kept: the next layer's lie in the same place."""
    with ExitStack() as stack:
        for device, enabled, dtype in casts:
            if enabled or torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=False))
        yield
