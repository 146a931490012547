"""DeepSpeed's words over strata.torch.Engine: what its users, Accelerate and Trainer touch of it (docs/python.md).

    python -m strata.deepspeed train.py ...          a script as it is: `import deepspeed` is this package
    import strata.deepspeed as deepspeed             or one of your own

Names are DeepSpeed's; behaviour is described where it differs.  What is absent raises, and says so.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import Any

import torch

from .._library import Library
from ..torch.optimizer import groups_of
from . import accelerator, checkpoint, comm, launcher, ops, runtime, utils
from ._install import VERSION, absent, install, missing
from ._settings import section, taken
from ._watch import watch
from .comm import init_distributed
from .runtime import zero
from .runtime.engine import DeepSpeedEngine, ForwardEngine, engine_of

__version__ = VERSION
__version_major__, __version_minor__, __version_patch__ = map(int, VERSION.split("."))

__all__ = [
    "DeepSpeedEngine",
    "accelerator",
    "add_config_arguments",
    "checkpoint",
    "comm",
    "init_distributed",
    "initialize",
    "install",
    "launcher",
    "ops",
    "runtime",
    "utils",
    "zero",
]

__getattr__ = missing(__name__)


def initialize(
    args: argparse.Namespace | None = None,
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | Callable[[Any], torch.optim.Optimizer] | None = None,
    model_parameters: Iterable[Any] | None = None,
    training_data: Any = None,
    lr_scheduler: Any = None,
    distributed_port: int = 29500,
    mpu: Any = None,
    dist_init_required: bool | None = None,
    collate_fn: Callable[[Any], Any] | None = None,
    config: Any = None,
    mesh_param: Any = None,
    config_params: Any = None,
) -> tuple[DeepSpeedEngine, torch.optim.Optimizer | None, Any, Any]:
    """An engine that trains `model`, its optimizer, a DataLoader of training_data or None, and a scheduler or None.

    model_parameters  what is trained, as an optimizer takes it: parameters, or groups; None: all that require gradients
    optimizer         its rule, rates and groups count; state is strata's.  None: the configuration's
                      Without any the engine only computes forward, as that of a reference model does.
    lr_scheduler      stepped by step(): an object, or a function of the optimizer; None: the configuration's
    config            a dict or a file; also config_params, or args.deepspeed_config

    An engine that has this module already ends: its weights go on in the new one, its optimizer's state does not.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"initialize() needs model, a torch.nn.Module, not {type(model).__name__}")
    if isinstance(model, DeepSpeedEngine):
        raise TypeError("this model is an engine already: initialize() takes the module in it, engine.module")
    if mpu is not None or mesh_param is not None:
        raise absent("model, pipeline and sequence parallelism (mpu, mesh_param)", NotImplementedError)
    watch()
    if dist_init_required is not False:
        init_distributed(distributed_port=distributed_port)
    ours = Library.get().abi.strata_version().decode()
    utils.log_dist(f"DeepSpeed info: version={VERSION}, of strata {ours}", ranks=[0])
    given = config if config is not None else config_params
    settings = taken(given if given is not None else getattr(args, "deepspeed_config", None))
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        optimizer = optimizer(model.parameters() if model_parameters is None else model_parameters)
    earlier = engine_of(model)
    if earlier is not None:
        earlier.replace()
    if optimizer is None and not section(settings, "optimizer").get("type"):
        engine: DeepSpeedEngine = ForwardEngine(model, settings)
    else:
        groups = groups_of(model_parameters if optimizer is None else optimizer.param_groups, model)
        engine = DeepSpeedEngine(model, settings, parameters=groups, optimizer=optimizer, lr_scheduler=lr_scheduler)
    if training_data is not None:
        engine.training_dataloader = _loader(training_data, engine, collate_fn)
    return engine, engine.optimizer, engine.training_dataloader, engine.lr_scheduler


def _loader(data: Any, engine: DeepSpeedEngine, collate_fn: Callable[[Any], Any] | None) -> Any:
    """DeepSpeed's: a map-style data set is shuffled by DistributedSampler's seed, whichever the number of ranks."""
    sampler: Any = None
    if not isinstance(data, torch.utils.data.IterableDataset):
        sampler = torch.utils.data.distributed.DistributedSampler(data, comm.get_world_size(), comm.get_rank())
    return torch.utils.data.DataLoader(
        data,
        batch_size=engine.train_micro_batch_size_per_gpu(),
        sampler=sampler,
        collate_fn=collate_fn,
        drop_last=bool(engine.config.get("dataloader_drop_last", False)),
    )


def add_config_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """--deepspeed and --deepspeed_config, for a script's parser."""
    group = parser.add_argument_group("DeepSpeed")
    group.add_argument("--deepspeed", action="store_true", help="for the script's own use")
    group.add_argument("--deepspeed_config", metavar="FILE", help="the configuration of initialize()")
    return parser
