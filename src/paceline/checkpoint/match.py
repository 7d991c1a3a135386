"""Whether a checkpoint fits a state: names, shapes and dtypes of the leaves, compared before anything is read.

Owns: which leaf of the checkpoint belongs to which of the state, the words for what does not fit.
Not here: damage (`checkpoint.reading`): what does not fit is never skipped.
Invariant: a leaf is never cast, cut or padded to fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.base.errors import CheckpointError
from paceline.base.units import format_count
from paceline.checkpoint.snapshot import Leaf

_PARAMS = "params."
_WHOLE = "(whole)"
_SHOWN = 4


def table(document: Mapping[str, Any]) -> dict[str, Leaf]:
    """The leaves of a checkpoint by name."""
    return {name: Leaf(tuple(entry["shape"]), entry["dtype"]) for name, entry in document["leaves"].items()}


def match(wanted: Mapping[str, Leaf], there: Mapping[str, Leaf], *, source: str) -> dict[str, str]:
    """For each leaf of the state, its name in the checkpoint.

    A state that has none of the checkpoint's names may be its parameters alone.

    Raises: CheckpointError: leaves are missing, unexpected, of another shape or dtype; they are named.
    """
    names = {name: name for name in wanted}
    expected = set(there)
    inside = {name: "params" if name == _WHOLE else f"{_PARAMS}{name}" for name in wanted}
    if not set(wanted) & set(there) and set(inside.values()) & set(there):
        names = inside
        expected = {name for name in there if name == "params" or name.startswith(_PARAMS)}
    missing = [name for name, source_name in names.items() if source_name not in there]
    unexpected = sorted(expected - set(names.values()), key=list(there).index)
    pairs = [(name, wanted[name], there[other]) for name, other in names.items() if other in there]
    shapes = [f"{name} is {old.shape} there and {new.shape} here" for name, new, old in pairs if old.shape != new.shape]
    dtypes = [f"{name} is {old.dtype} there and {new.dtype} here" for name, new, old in pairs if old.dtype != new.dtype]
    if missing or unexpected or shapes or dtypes:
        raise _unfit(source, missing=missing, unexpected=unexpected, shapes=shapes, dtypes=dtypes)
    return names


def _unfit(
    source: str, *, missing: list[str], unexpected: list[str], shapes: list[str], dtypes: list[str]
) -> CheckpointError:
    parts = [
        f"{_leaves(names)} {verb}: {shown(names)}"
        for names, verb in (
            (missing, "not there"),
            (unexpected, "only there"),
            (shapes, "of another shape"),
            (dtypes, "of another dtype"),
        )
        if names
    ]  # fmt: skip
    return CheckpointError(
        what=f"{source} does not fit the state: {'; '.join(parts)}",
        why="the numbers of one model mean nothing in another, and no leaf is cast, cut or padded",
        fix=_way_out([*missing, *unexpected, *shapes, *dtypes]),
    )


def shown(names: list[str]) -> str:
    """The first few of a list, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


def _leaves(names: list[str]) -> str:
    return format_count(len(names), "leaf") if len(names) == 1 else f"{len(names)} leaves"


def _way_out(odd: list[str]) -> str:
    fields = {name.split(".")[0].split(" ")[0] for name in odd}
    if fields <= {"ema", "loss_scale"}:
        return "go on with the options of the run that saved it: ema_decay and precision"
    if fields <= {"opt_state"}:
        return "go on with its optimizer, or take its parameters alone: paceline.restore(path, state.params)"
    return "go on with the task and the options that it was saved with (run.json has them), or begin a new run"
