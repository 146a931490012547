"""Keys of `strata` in a configuration that mean something else to an engine of a module, or nothing, than to the program.

Those that change results are refused where the module or its parameter groups say otherwise; others are named in the log.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from .._handles import Config, file_of
from ..errors import Error
from ..planning import check as rows_of

RESIDENT, PAGED, DECODER = "resident", "paged", "decoder"  # PyTorch computes, weights that stay or page; strata computes
_ALL = (RESIDENT, PAGED, DECODER)
_LOSS = ("strata.router_aux_loss_coef", "strata.output_router_logits")
_UPDATES = ("auto", "serial", "gated", "in_backward", "speculative")


class _Idle(NamedTuple):
    path: str
    fine: tuple[str, ...]  # values that ask for nothing, or for what is so anyway
    engines: tuple[str, ...]
    because: str


_IDLE = (
    _Idle("strata.save_every", ("0",), _ALL, "it saves when its save() is called"),
    _Idle("strata.keep_best", ("0",), _ALL, "evaluations are not its own, and it knows no losses of theirs"),
    _Idle("strata.watchdog", ("false",), _ALL, "it does not watch the machine's memory"),
    _Idle("strata.clip_rate", ("auto",), (RESIDENT, PAGED), "where PyTorch computes no update is speculative"),
    _Idle("strata.accumulation", ("auto", "horizontal"), _ALL, "micro-batches come one after the other (horizontal)"),
    _Idle("strata.activations", ("auto",), (RESIDENT,), "PyTorch keeps what backward needs, or the module's checkpointing"),
    _Idle("strata.activations", ("auto", "recomputed"), (PAGED,), "layers that page compute forward again in backward"),
    _Idle("strata.activation_tier", ("auto",), (RESIDENT,), "PyTorch keeps what backward needs"),
    _Idle("strata.seq_len", ("0",), (RESIDENT, PAGED), "PyTorch computes sequences of any length"),
    _Idle("strata.boundary_bytes", ("0",), (RESIDENT, DECODER), "no layers page"),
)


class Keys:
    """What a configuration's file and overrides say of `strata`."""

    def __init__(self, config: Config, overrides: Mapping[str, Any] | None, told_overlap: bool) -> None:
        rows = rows_of(config, overrides=overrides, allow_unknown=True)
        said = (row for row in rows if row["origin"] in ("file", "command line") and row["path"].startswith("strata."))
        self._said: dict[str, str] = {row["path"]: row["value"] for row in said}
        named = file_of(config) if isinstance(config, Mapping) else config
        self._file = None if named is None else os.fsdecode(named)
        self._update = self._said.get("strata.update", "auto")
        self.overlap = told_overlap or self._update == "gated"

    def changes(self) -> dict[str, str]:
        """The policy of updates where PyTorch computes; a value that is none is left for the library to refuse."""
        return {"strata.update": "gated" if self.overlap else "serial"} if self._update in _UPDATES else {}

    def decoders(self) -> dict[str, Any]:
        """The same where strata computes, models without experts."""
        made: dict[str, Any] = self.changes()
        if self._update == "speculative" and not self.overlap:
            made["strata.update"] = "speculative"
        if _LOSS[0] in self._said or _LOSS[1] in self._said:
            made.update(zip(_LOSS, ("auto", False)))  # tell() says so
        return made

    def check_groups(self, module: torch.nn.Module, groups: Sequence[Mapping[str, Any]], otherwise: float) -> None:
        """What decays is as groups say; strata.decay_all true is what they do unless they say more."""
        decays = {p: float(group.get("weight_decay", otherwise)) for group in groups for p in group["params"]}
        for name, p in module.named_parameters() if self._said.get("strata.decay_all") == "false" else ():
            if p.dim() < 2 and decays.get(p, 0) > 0:
                cause = (
                    f"{name} has weight_decay {decays[p]:g} by its parameter group, and groups count in an engine of a module"
                )
                raise self._refused("strata.decay_all", cause, "leave it out, and say it by parameter groups")

    def tell(self, engine: str, module: torch.nn.Module, aloud: bool) -> None:
        """Refuse or name what does nothing in such an engine.  aloud: on one rank."""
        self._check_loss(module, aloud)
        said = [(one.path, one.because) for one in _IDLE if engine in one.engines and self._asks(one.path, one.fine)]
        idle = ("in_backward",) if engine == DECODER else ("in_backward", "speculative")
        if self._update in idle:
            then = "beside the next forward (gated)" if self.overlap else "then (serial)"
            said.append(("strata.update", f"a step may be dropped until its step(), and updates {then}"))
        for path, because in said if aloud else ():
            logging.getLogger("strata").warning(
                "%s: %s has no effect in an engine of a module: %s", path, self._said[path], because
            )

    def _asks(self, path: str, fine: Iterable[str]) -> bool:
        return path in self._said and self._said[path] not in fine

    def _check_loss(self, module: torch.nn.Module, aloud: bool) -> None:
        """The auxiliary loss of experts is part of what PyTorch computes."""
        asked = self._said.get(_LOSS[0])
        given = [path for path in _LOSS if self._asks(path, ("false",))]
        if not given:
            return
        key, name = given[0], type(module).__name__
        config: Any = getattr(module, "config", None)
        text = config.get_text_config() if hasattr(config, "get_text_config") else None
        if text is not None and not any(getattr(text, one, None) for one in _EXPERTS):
            for path in given if aloud else ():
                logging.getLogger("strata").warning(
                    "%s %s: %s has no experts, so it has no effect", path, self._said[path], name
                )
            return
        own = getattr(module, "router_aux_loss_coef", getattr(text, "router_aux_loss_coef", None))
        if own is None:
            cause = f"PyTorch computes the loss of {name}, which is not known to take it"
            raise self._refused(key, cause, "leave it out, and add the auxiliary loss in the module")
        now = own if getattr(text, "output_router_logits", False) else 0.0
        wanted = own if asked is None else float(asked)
        if _single(now) != _single(wanted):
            remedy = f"make the model with router_aux_loss_coef={wanted:g}, output_router_logits={wanted > 0}, as arguments of "
            remedy += "from_pretrained() or its configuration, or leave the key out"
            raise self._refused(
                key, f"PyTorch computes the loss of {name}, which adds its auxiliary loss times {now:g}", remedy
            )

    def _refused(self, key: str, cause: str, remedy: str) -> Error:
        where = f"{self._file}: " if self._file else ""
        return Error("E_CONFIG", f"{where}{key} {self._said[key]}: {cause}", exit_code=2, key=key, remedy=remedy)


_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def _single(value: float) -> float:
    """As fp32 has it."""
    made: float = struct.unpack("f", struct.pack("f", value))[0]
    return made
