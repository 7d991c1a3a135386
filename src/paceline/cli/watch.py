"""`paceline watch [RUNS]`: the live page of the runs in a folder, or its form for the terminal.

Owns: the options of the command, the folder that is not there yet.
Not here: the page (`dashboard.serve`), the terminal form (`dashboard.terminal`).

This module imports no jax: it may look at runs on a machine that has none.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from paceline.base.errors import OptionError, nearest
from paceline.cli.options import parse
from paceline.dashboard.follow.root import find

DEFAULT_ROOT = "runs"
_LOOK_S = 0.5
_WITH_VALUE = ("--host", "--port", "--run", "--beside")
_NICE = 5
_EXTRA = ("anyio", "h11", "sse_starlette", "starlette", "uvicorn")


@dataclass(frozen=True)
class WatchOptions:
    """Options of `paceline watch`.

    Args:
      host: address to listen on (default: this machine alone); others demand a token, which is printed.
      port: port to listen on (default: 8070, or the next that is free).
      open: open the page in a browser.
      run: the run to show first, by its name in the folder.
      terminal: show the runs here instead of on a page.
      once: with --terminal: show them once and end.
      beside: number of the process that started this one: end with it, and leave the cores to it (train --watch).
      traceback: show Python's traceback for errors.
    """

    host: str | None = None
    port: int | None = None
    open: bool = False
    run: str | None = None
    terminal: bool = False
    once: bool = False
    beside: int | None = None
    traceback: bool = False


def run(arguments: list[str]) -> int:
    """Watch as the arguments say; returns the exit code."""
    places, flags = _divide(arguments)
    options: WatchOptions = parse(
        flags,
        program="paceline watch [RUNS]",
        description="A live page of the runs in a folder (default: runs), or of one run.",
        groups={"watch": WatchOptions()},
    )["watch"]
    _refuse_without_effect(options)
    root = Path(_root(places)).expanduser()
    if options.terminal:
        return _terminal(root, options)
    return _page(root, options)


def _terminal(root: Path, options: WatchOptions) -> int:
    from paceline.dashboard import terminal
    from paceline.dashboard.terminal.keys import single_keys

    if options.once or not sys.stdout.isatty():
        _check_folder(root, waits=False)
    else:
        with single_keys() as keys:
            if not _await_folder(root, wait=lambda seconds: keys.wait(seconds) == "quit"):
                return 0
    terminal.watch(root, run=options.run, once=options.once)
    return 0


def _page(root: Path, options: WatchOptions) -> int:
    server = _server()
    if options.beside is not None:
        os.nice(_NICE)
    if not root.is_dir():
        _check_folder(root, waits=True)
        print(f"{root} is not there yet: the page shows the first run in it when it begins.", flush=True)
    if options.beside is None:  # the run beside it is there
        _check_run(root, options.run)
    return server.serve(
        root,
        host=options.host or server.DEFAULT_HOST,
        port=options.port,
        open_browser=options.open,
        run=options.run,
        parent=options.beside,
    )


def _server() -> ModuleType:
    """The module of the page's server. Raises: OptionError: the extra is not installed."""
    from paceline.dashboard.serve.assets import missing_extra

    try:
        from paceline.dashboard.serve import server
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRA:
            raise
        raise missing_extra(package.replace("_", "-")) from error
    return server


def _await_folder(root: Path, *, wait: Callable[[float], bool]) -> bool:
    """Until the folder of runs is there: the first run makes it.

    Args:
      wait: sleeps for so many seconds; true says that the user does not wait longer.
    Returns: whether it is there; False if the user left.

    Raises: OptionError: it cannot come to be.
    """
    if root.is_dir():
        return True
    _check_folder(root, waits=True)
    with suppress(KeyboardInterrupt):
        print(f"{root} is not there yet: waiting for the first run in it. Ctrl-C ends this.", flush=True)
        while not root.is_dir():
            if wait(_LOOK_S):
                return False
        return True
    return False


def _check_folder(root: Path, *, waits: bool) -> None:
    """Raise OptionError for a folder that is not there or cannot come to be: a file, or one whose folder is missing.

    Args:
      waits: one that may yet come to be is none of these.
    """
    if root.is_dir():
        return
    if root.exists() or not root.absolute().parent.is_dir():
        raise OptionError(
            what=f"{str(root)!r} is no folder",
            why="a run is a folder, and runs lie in a folder of theirs",
            fix="name the folder that holds the runs, such as runs, or the folder of one run",
        )
    if not waits:
        raise OptionError(
            what=f"{str(root)!r} is not there",
            why="the runs are shown once, and there is nothing to show",
            fix="name the folder that holds the runs, or leave --once out, on a terminal, to wait for the first run",
        )


def _check_run(root: Path, run: str | None) -> None:
    """Raise OptionError for a run that is not among those in the folder. Where there is none yet it may yet begin."""
    runs = {} if run is None else find(root).runs
    if run is not None and runs and run not in runs:
        raise OptionError(
            what=f"--run {run}: no run in {str(root)!r} has this name{nearest(run, runs)}",
            why="the page would show another run",
            fix="use a name that the page or paceline watch --terminal --once lists, or leave --run out",
        )


def _root(places: list[str]) -> str:
    if len(places) > 1:
        raise OptionError(
            what=f"paceline watch was given {len(places)} folders",
            why="it shows the runs of one folder, and of the folders in it",
            fix="name the folder that holds them all; paceline compare takes several",
        )
    return places[0] if places else DEFAULT_ROOT


def _refuse_without_effect(options: WatchOptions) -> None:
    if options.port is not None and not 0 <= options.port <= 65535:
        raise OptionError(
            what=f"--port {options.port}", why="ports are numbers up to 65535", fix="leave --port out, or use 8070"
        )
    if options.terminal:
        names = [name for name in ("host", "port", "open") if getattr(options, name)]
        other = "--terminal shows no page"
    else:
        names, other = ["once"] if options.once else [], "a page is shown until Ctrl-C"
    if names:
        raise OptionError(
            what=f"--{names[0]} {'with' if options.terminal else 'without'} --terminal",
            why=f"it would have no effect: {other}",
            fix=f"remove --{names[0]}" + ("" if options.terminal else " or add --terminal"),
        )


def _divide(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The folder may stand before the options or behind them."""
    places: list[str] = []
    flags: list[str] = []
    wants_value = False
    for argument in arguments:
        if wants_value or argument.startswith("-"):
            flags.append(argument)
            wants_value = not wants_value and argument in _WITH_VALUE
        else:
            places.append(argument)
    return places, flags
