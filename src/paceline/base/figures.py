"""Files that are drawn by matplotlib: whether they could be written, and what follows when they cannot.

Owns: the check before anything is read or measured, the error of a drawing that failed, replacing a file whole.
Not here: what is drawn (`measure.scale.figure`, `dashboard.compare.figure`).
Invariant: a drawing that fails leaves the file that was there.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from paceline.base.errors import OptionError, PacelineError

PICTURES = (".png", ".svg")
PAGES = (".html", ".htm")


class FigureError(PacelineError):
    """A picture or page that could not be drawn; the numbers are not lost."""


def check_figure(path: str, *, flag: str, endings: Sequence[str] = PICTURES) -> None:
    """Raise OptionError, before anything is done, for a file that could not be written in the end.

    Args:
      flag: that names it.
    """
    file = Path(path)
    if file.suffix.lower() not in endings:
        raise OptionError(
            what=f"--{flag} {path} ends in none of {', '.join(endings)}",
            why="the ending says what is written",
            fix=f"use --{flag} {file.stem or 'figure'}{endings[0]}",
        )
    folder = file.absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK) or file.is_dir():
        raise OptionError(
            what=f"--{flag} {path}: the file cannot be written",
            why="what is drawn would be lost",
            fix="choose a file in a folder that exists and that you can write to",
        )
    if importlib.util.find_spec("matplotlib") is None:
        raise OptionError(
            what=f"--{flag} needs matplotlib, which is not installed",
            why="the core install draws nothing",
            fix="pip install 'paceline[report]', or leave the option out",
        )


@contextlib.contextmanager
def drawing(path: str) -> Iterator[Path]:
    """Gives a file beside ``path`` to draw into, which takes its place when all went well and is gone when not.

    Raises: FigureError: for whatever the drawing raises: it takes names of the user, and foreign code.
    """
    place = Path(path)
    temporary = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    try:
        with warnings.catch_warnings(action="ignore"):  # of matplotlib, which nobody who reads the picture can heed
            yield temporary
        os.replace(temporary, place)
    except Exception as error:
        raise _failed(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def _failed(path: str, error: Exception) -> FigureError:
    first = (str(error).strip().splitlines() or [""])[0]
    return FigureError(
        what=f"{path} could not be drawn: {type(error).__name__}: {first}",
        why="that file is as it was before; the text was printed, and --json is written",
        fix="read the numbers from the text, or from --json FILE; check the disk, or pip install -U matplotlib",
    )


def format_of(path: str) -> str:
    """The format that the ending asks for: the file that is drawn into ends otherwise."""
    return Path(path).suffix[1:].lower()
