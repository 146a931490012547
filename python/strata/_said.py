"""Sentences of the library in words of this package: they name members of its options, such as machine.gpu.

Where no function here takes such a member, the program does: `python -m strata train --help`.
"""

from __future__ import annotations

import re

_PHRASES = (
    ("; config.allow_unknown ignores it", ""),
    (", or call strata_model_set_steps() or strata_engine_set_lr()", ""),
    ("strata_config_opts.max_steps", "scheduler.params.total_num_steps"),
    ("steps of config.max_steps", "the steps of a run"),
    ("config.overrides scheduler=null", 'overrides={"scheduler": None}'),
    ("train.resume auto", "resume=True"),
    ("strata plan plan.measure", "plan(measure=True)"),
    ("machine.gpu list shows", "strata plan --gpu list shows"),
    ("machine.file FILE.json", "Machine.file"),
    ("machine.file FILE", "Machine.file"),
    ("machine.gpu NAME", "Machine.gpu"),
    ("STRATA_FROZEN freezes a tensor", "requires_grad_(False) freezes a parameter"),
    ("(command line): ", "(overrides): "),
    ("command line: ", "overrides: "),
)


def _rows(prefix: str, arguments: str, program: str = "", to: str = "", **others: str) -> dict[str, str]:
    """Members that are arguments of functions here, options of the program, and arguments of other names."""
    made = {f"{prefix}.{name}": f"{to}{name}" for name in arguments.split()}
    made.update((f"{prefix}.{name}", f"--{name.replace('_', '-')}") for name in program.split())
    made.update((f"{prefix}.{name}", word) for name, word in others.items())
    return made


MEMBERS = {
    **_rows("machine", "device file gpu ram drives ranks nodes", to="Machine."),
    **_rows("comm", "rank ranks address port", to="Comm."),
    **_rows("model", "model seq_len max_tokens seed", "adapter", cache_tokens="context"),
    **_rows("config", "overrides allow_unknown", max_steps="the number of steps", steps_later="epochs"),
    **_rows("texts", "tokenizer chat_template layout seed", "chat_template_kwargs dataset_info date max_samples"),
    **_rows("texts", "", "as_trl mask_history strict train_on_prompt val_size"),
    **_rows("texts", "", datasets="--dataset", turn_ends="--train-turn-ends"),
    **_rows("chat", "", chat_template="template"),
    **_rows("train", "out resume", "metrics", no_shuffle="shuffle"),
    **_rows("engine", "overwrite"),
    **_rows("export", "overwrite", "out"),
    **_rows("import", "", "out overwrite"),
    **_rows("merge", "model overwrite"),
    **_rows("plan", "batch_tokens measure"),
    **_rows("info", "", "out measure"),
    **_rows("tokens", "", "date layout format heldout show mask_history train_on_prompt val_size"),
    **_rows("resume", "", data_seed="seed"),
}
_MEMBER = re.compile(rf"(?<![\w./'\"-])(?:{'|'.join(map(re.escape, MEMBERS))})(?![\w/-]|\.\w)")


def in_python(text: str) -> str:
    """A sentence that names what callers of this package can write."""
    for said, meant in _PHRASES:
        text = text.replace(said, meant)
    return _MEMBER.sub(lambda found: MEMBERS[found.group()], text)
