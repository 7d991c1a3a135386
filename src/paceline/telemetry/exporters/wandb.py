"""Weights & Biases: a run in the folder ``wandb/`` of the run, sent by its own process unless it is offline.

Owns: events as rows of its history, with our step as the axis of every chart and our times.
Not here: the login, the mode and the project, which its own variables and ``wandb login`` decide.
Invariant: the user's own `wandb` run in this process, if any, is left alone; standard output is not caught.
"""

from __future__ import annotations

import netrc
import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from paceline.base.errors import OptionError
from paceline.telemetry.document import plain
from paceline.telemetry.events import Event
from paceline.telemetry.exporters.exporter import import_extra

PROJECT = "paceline"


def open_exporter(folder: Path | None, *, kept: dict[str, Any], live: bool) -> WeightsAndBiases:
    """See `make_exporter`. Raises: OptionError: no package, or no login."""
    package = import_extra("wandb", extra="wandb")
    _check_login(package.setup().settings)
    return WeightsAndBiases(package, folder, kept=kept, live=live)


class WeightsAndBiases:
    """One `wandb` run; see `Exporter`."""

    def __init__(self, package: Any, folder: Path | None, *, kept: Mapping[str, Any], live: bool) -> None:
        self._package = package
        self._folder = folder
        self._live = live
        self._id = kept.get("id") or uuid.uuid4().hex[:8]
        self._rows = int(kept.get("rows", 0))
        self._run: Any = None
        self._where = ""

    @property
    def where(self) -> str:
        """The run's page, or the folder of an offline run, which ``wandb sync`` takes."""
        return self._where

    @property
    def kept(self) -> dict[str, Any]:
        """Its id, and the rows of its history: these must go on counting."""
        return {"id": self._id, "rows": self._rows}

    def begin(self, run: Mapping[str, Any]) -> None:
        """Makes the run, or goes on with it."""
        settings = self._package.Settings(
            console="off", silent=True, save_code=False, disable_git=True, disable_code=True,
            x_disable_stats=not self._live, x_disable_machine_info=not self._live,
        )  # fmt: skip
        self._run = self._package.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            id=self._id,
            resume="allow",
            reinit="create_new",
            name=None if self._folder is None else self._folder.absolute().name,
            dir=None if self._folder is None else str(self._folder),
            config=plain(run),
            settings=settings,
        )
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")
        self._where = "" if self._run.offline else self._run.url or ""
        self._where = self._where or str(Path(self._run.dir).parent)

    def event(self, event: Event) -> None:
        """One row: the values, or the words, of an event."""
        row: dict[str, Any] = dict(event.values)
        if event.text:
            row["event"] = f"{event.kind}: {event.text}"
        if row:
            self._run.log(row | {"step": event.step, "_timestamp": event.time_s}, step=self._rows, commit=True)
            self._rows += 1

    def flush(self) -> None:
        """Its own process does."""

    def end(self, report: Mapping[str, Any] | None) -> None:
        """Puts the report into the summary and says whether the run failed."""
        if report is not None:
            self._run.summary.update({"report": plain(report)})
        self._finish(exit_code=1 if report is None or report.get("stopped") else 0)

    def close(self) -> None:
        """Leaves the run as it is."""
        self._finish(exit_code=None)

    def _finish(self, exit_code: int | None) -> None:
        run, self._run = self._run, None
        if run is None:
            return
        try:
            run.finish(exit_code=exit_code)
        except ConnectionError:
            # Its process was killed. At the end of Python it would be asked to end, with a traceback for the answer.
            with suppress(Exception, SystemExit):
                self._package.teardown()
            raise


def _check_login(settings: Any) -> None:
    """Refuse now what would ask for a key in the middle of a run.

    Raises: OptionError: the run would go to a server that no key is known for.
    """
    token_file = getattr(settings, "identity_token_file", None)
    if settings.mode not in (None, "online", "shared") or settings.api_key or token_file:
        return
    host = urlparse(settings.base_url).hostname or ""
    if os.environ.get("WANDB_API_KEY") or _netrc_has(host):
        return
    raise OptionError(
        what=f"logging to wandb: nobody is logged in at {host}",
        why="wandb would ask for a key while the run trains, or give up",
        fix="run wandb login, or set WANDB_MODE=offline and send the run later with wandb sync",
    )


def _netrc_has(host: str) -> bool:
    path = os.path.expanduser(os.environ.get("NETRC") or "~/.netrc")
    for candidate in (path, os.path.expanduser("~/_netrc")):
        try:
            if netrc.netrc(candidate).authenticators(host):
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False
