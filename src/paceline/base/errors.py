"""The one family of errors that a user's mistake raises.

Owns: what, why and fix as data, so that the command line, ``--json`` and the page render the same words.
Not here: our own bugs, which are ``assert`` statements.
Invariant: every error names the thing that is wrong, why it matters and a way out that works.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from paceline.base.exits import LOST_PEER


class PacelineError(Exception):
    """Base of all errors that a user can mend.

    Args:
      what: the thing that is wrong, with its name and its sizes.
      why: what would go wrong if Paceline went on.
      fix: the change to make, as a command, an option or a line of code.

    Attribute `state`: the last good state, where an error ended a run; None elsewhere.
    """

    exit_code: int = 2

    def __init__(self, *, what: str, why: str, fix: str) -> None:
        super().__init__(what)
        self.what: str = what
        self.why: str = why
        self.fix: str = fix
        self.state: Any = None

    def __str__(self) -> str:
        return f"{self.what}\n  why: {self.why}\n  fix: {self.fix}"

    def as_dict(self) -> dict[str, Any]:
        """The error as JSON-ready data: kind, what, why, fix."""
        return {"kind": type(self).__name__, "what": self.what, "why": self.why, "fix": self.fix}


class DeviceError(PacelineError):
    """Devices asked for that are not there, or asked for too late."""


class BatchSizeError(PacelineError):
    """A batch that cannot be split evenly over the devices and microbatches."""


class DataError(PacelineError):
    """Rows that cannot be trained on: empty, ragged, scalar, of a type that no device holds, not finite."""


class LossError(PacelineError):
    """A loss or metric that has none of the three forms of the loss protocol."""


class TaskError(PacelineError):
    """The user's own code raised while it was traced or built."""


class AxisNameError(PacelineError):
    """Code that names a device axis which does not exist where it runs."""


class StateError(PacelineError):
    """Parameters, model state or optimizer state that do not fit the step."""


class ReplicationError(PacelineError):
    """A step after which the copies of a state on the devices would differ."""


class SchemeError(PacelineError):
    """A combination of scheme and options that would not do what it says."""


class OptionError(PacelineError):
    """A command-line option, or an entry of a configuration file, that makes no sense."""


class RecipeError(PacelineError):
    """A recipe or task file that is not there or lacks what it must define."""


class RunFolderError(PacelineError):
    """A run folder that exists already or cannot be written."""


class NonFiniteError(PacelineError):
    """A loss or a gradient that is not finite stopped the run."""

    exit_code: int = 1


class ReplicaError(PacelineError):
    """Devices that should hold the same bytes of the state do not."""

    exit_code: int = 1


class CheckpointError(PacelineError):
    """A checkpoint that is not there, is damaged, does not fit the state, or could not be saved."""


class SaveError(CheckpointError):
    """A checkpoint could not be saved: the disk is full, the folder is gone."""

    exit_code: int = 1


class ProcessError(PacelineError):
    """The processes of a run cannot start together or do not agree: wrong address, other code, other data."""


class PeerError(PacelineError):
    """Another process of the run died, hung or cannot be reached."""

    exit_code: int = LOST_PEER


def error_from(document: dict[str, Any]) -> PacelineError:
    """The error of `PacelineError.as_dict`, of its own class, as another process raised it."""
    kinds = {kind.__name__: kind for kind in _with_heirs(PacelineError)}
    kind = kinds.get(document["kind"], PacelineError)
    return kind(what=document["what"], why=document["why"], fix=document["fix"])


def _with_heirs(kind: type[PacelineError]) -> list[type[PacelineError]]:
    return [kind, *(heir for child in kind.__subclasses__() for heir in _with_heirs(child))]


def nearest(word: str, known: Iterable[str]) -> str:
    """A phrase ``, perhaps 'batch'`` for a misspelled word, or the empty string."""
    close = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f", perhaps {close[0]!r}" if close else ""
