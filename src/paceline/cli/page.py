"""``train --watch``: the page beside a run, in a process of its own.

Owns: when that process starts and ends, what it prints on the terminal of the run.
Not here: the page (`dashboard.serve`), the command that it is (`cli.watch`).
Invariant: whatever becomes of the page, the run goes on, ends when it would have ended, and with the same exit code.

The page is `paceline watch`, of lower priority than training and in a session of its own, so that Ctrl-C reaches the
run alone and the page shows how it ends. It ends when the run does, also when that is killed.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from types import TracebackType

from paceline.base import launched
from paceline.dashboard.serve.assets import missing_extra
from paceline.telemetry.folder import RUN_FILE

_EXTRA = ("plotly", "sse_starlette", "starlette", "uvicorn")
_LOOK_S = 0.1


def check_extra() -> None:
    """Before the run rather than in the midst of it. Raises: OptionError: a package of the extra is missing."""
    for package in _EXTRA:
        if importlib.util.find_spec(package) is None:
            raise missing_extra(package.replace("_", "-"))


def page_beside(run: Path, *, asked: bool, process: int) -> AbstractContextManager[object]:
    """The page of a run that asked for one: of several processes the first shows it, for all."""
    return RunPage(run) if asked and process == 0 else nullcontext()


class RunPage:
    """Inside it, the page of a run is there from when the run has its folder.

    Args:
      run: folder of the run, which need not be there yet.
      say: prints a line on the terminal of the run.
    """

    def __init__(self, run: Path, *, say: Callable[[str], None] = print) -> None:
        self._run = Path(os.path.abspath(run.expanduser()))
        self._root = watched_root(self._run, here=Path.cwd())
        self._say = say
        self._process: subprocess.Popen[str] | None = None
        self._over = threading.Event()
        self._is_told = False
        self._lock = threading.Lock()

    def __enter__(self) -> RunPage:
        threading.Thread(target=self._show, name="page", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._over.set()
            process = self._process
        if process is None:
            return
        if process.poll() is None:
            with suppress(OSError):
                process.terminate()  # it shows the last events, and then ends; nobody waits for it
            self._say(f"the page ends with the run; {self._again()} shows it again")
        elif not self._is_told:
            self._say(f"the page ended ({process.returncode}) before the run; {self._again()} shows it again")

    def _show(self) -> None:
        while not (self._run / RUN_FILE).is_file():
            if self._over.wait(_LOOK_S):
                return
        try:
            with self._lock:
                if self._over.is_set():
                    return
                self._process = self._start()
            assert self._process.stdout is not None
            for line in self._process.stdout:
                self._say(line.rstrip("\n"))
            code = self._process.wait()
        except (OSError, ValueError) as error:
            code = error
        with self._lock:
            self._is_told = not self._over.is_set()
        if self._is_told:
            self._say(f"the page ended ({code}); training goes on. {self._again()} shows it again")

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "paceline.cli.main", "watch", str(self._root), "--run", self._id()]
        # Variables of a supervisor name this run's processes: the page is none of them, and has no status to tell.
        environment = {name: value for name, value in os.environ.items() if name not in launched.ALL}
        return subprocess.Popen(
            [*command, "--beside", str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment | {"PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )

    def _id(self) -> str:
        inside = self._run.relative_to(self._root).as_posix()
        return self._run.name if inside == "." else inside

    def _again(self) -> str:
        root = os.path.relpath(self._root)
        return f"paceline watch {root if len(root) < len(str(self._root)) else self._root}"


def watched_root(run: Path, *, here: Path) -> Path:
    """The folder to watch: that of all runs, so that others can be laid beside this one.

    A run that lies right in the current folder, or above it, is watched alone: beside it lies anything.
    """
    return run if here.is_relative_to(run.parent) else run.parent
