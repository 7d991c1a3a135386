"""What every exporter does, and which there are.

Owns: the protocol, the table of names, making one by its name.
Not here: threads and queues (`exporters.fanout`), reading run folders (`exporters.replay`), what was exported already
(`exporters.ledger`).
Invariant: making an exporter writes nothing and asks no network; what can be refused is refused there.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import msgspec

from paceline.base.errors import OptionError, PacelineError, nearest
from paceline.telemetry.events import Event

EXPORTERS: Mapping[str, str] = MappingProxyType(
    {"tensorboard": "TensorBoard", "wandb": "Weights & Biases", "mlflow": "MLflow"}
)
"""Names as ``--log-to`` takes them, and what people call them."""

_LARGEST_WHOLE = 2**63 - 1


class ExportError(PacelineError):
    """An exporter refused the events of a run, or its own record of them is damaged."""

    exit_code: int = 1


@runtime_checkable
class Exporter(Protocol):
    """Hands the events of one run to one program.

    The calls, all from one thread: `begin` once, then `event` and `flush` as often as needed, `end` if the run ended,
    `close` always, also after an error and without `begin`. Any of them may raise whatever the program raises.

    A run that is resumed is exported by a new exporter, which gets what the earlier one left in `kept`.
    """

    @property
    def where(self) -> str:
        """Where the events go, in words; known after `begin`."""
        ...

    @property
    def kept(self) -> dict[str, Any]:
        """What a later exporter of this run goes on from, as plain JSON; known after `begin`."""
        ...

    def begin(self, run: Mapping[str, Any]) -> None:
        """Opens the place; `run` is the content of ``run.json``."""
        ...

    def event(self, event: Event) -> None:
        """One event; it may wait for `flush`."""
        ...

    def flush(self) -> None:
        """What was given so far can be seen by others."""
        ...

    def end(self, report: Mapping[str, Any] | None) -> None:
        """The run ended, with the content of ``report.json`` if it wrote one."""
        ...

    def close(self) -> None:
        """Gives everything free; again does nothing."""
        ...


def exporter_names(asked: str | Iterable[str]) -> tuple[str, ...]:
    """The exporters asked for, each once; an entry may hold several with commas between.

    Raises: OptionError: a name that no exporter has.
    """
    entries = [asked] if isinstance(asked, str) else asked
    names = [name.strip() for entry in entries for name in entry.split(",") if name.strip()]
    for name in names:
        if name not in EXPORTERS:
            raise OptionError(
                what=f"no exporter is called {name!r}{nearest(name, EXPORTERS)}",
                why="the run would be logged nowhere but in its own folder",
                fix="use one or more of " + ", ".join(EXPORTERS),
            )
    return tuple(dict.fromkeys(names))


def sendable(event: Event) -> Event:
    """The event with numbers that every program takes.

    Whole numbers on a line have no limit. Those of more than 64 bits become floats, and infinite beyond a float.
    """
    if all(type(value) is float or -_LARGEST_WHOLE <= value <= _LARGEST_WHOLE for value in event.values.values()):
        return event
    return msgspec.structs.replace(event, values={key: _sendable_number(value) for key, value in event.values.items()})


def _sendable_number(value: int | float) -> int | float:
    if isinstance(value, float) or -_LARGEST_WHOLE <= value <= _LARGEST_WHOLE:
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def make_exporter(
    name: str, folder: Path | None, *, kept: Mapping[str, Any] | None = None, live: bool = True
) -> Exporter:
    """An exporter by its name, before `begin`.

    Args:
      folder: of the run; None for a run without one.
      kept: what an earlier exporter of this run kept; without it the run is exported anew.
      live: the run goes on in this process, so that what the program measures of the machine belongs to it.
    Raises: OptionError: no such exporter, its package is not installed, or it cannot log here.
    """
    (name,) = exporter_names([name])
    module = importlib.import_module(f"paceline.telemetry.exporters.{name}")
    return module.open_exporter(folder, kept=dict(kept or {}), live=live)


def import_extra(module: str, *, extra: str) -> Any:
    """A module of the package behind an exporter.

    Raises: OptionError: it is not installed, or fails to import.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        absent = isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == package
        raise OptionError(
            what=f"logging to {extra}: the package {package} "
            + ("is not installed" if absent else f"cannot be imported: {error}"),
            why=f"{EXPORTERS[extra]} is written through its own package, which Paceline does not need otherwise",
            fix=f"pip install 'paceline[{extra}]'",
        ) from error
