"""MLflow: a run in the store of ``MLFLOW_TRACKING_URI``, or in MLflow's default store.

Owns: events as metrics with our steps and times, ``run.json`` as parameters.
Not here: artifacts; the words of events, of which only the reason of the end is kept, as a tag.
Invariant: only the client is used, so the user's own active MLflow run, if any, is left alone.
"""

from __future__ import annotations

import importlib.util
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from paceline.base.errors import OptionError
from paceline.telemetry.document import plain
from paceline.telemetry.events import Event
from paceline.telemetry.exporters.exporter import import_extra

EXPERIMENT = "paceline"
_METRICS_AT_ONCE = 1000  # MLflow's own limits
_PARAMETERS_AT_ONCE = 100
_PARAMETER_CHARACTERS = 500
_MOST_MS = 2**63 - 1
_REFUSED = re.compile(r"[^/\w.\- :]")
_SECTIONS = ("task", "parallel", "data", "devices", "counts", "versions")


def open_exporter(folder: Path | None, *, kept: dict[str, Any], live: bool) -> MLflow:
    """See `make_exporter`. Raises: OptionError: no package, or no store that this installation can use."""
    del live  # nothing of this machine is measured
    package = import_extra("mlflow", extra="mlflow")
    store = package.get_tracking_uri()
    _check_store(store)
    return MLflow(store, folder, kept=kept)


class MLflow:
    """One MLflow run; see `Exporter`."""

    def __init__(self, store: str, folder: Path | None, *, kept: Mapping[str, Any]) -> None:
        self._store = store
        self._folder = folder
        self._tracking = import_extra("mlflow.tracking", extra="mlflow")
        self._entities = import_extra("mlflow.entities", extra="mlflow")
        self._run_id: str = kept.get("run_id", "")
        self._client: Any = None
        self._waiting: list[Any] = []
        self._is_told = False

    @property
    def where(self) -> str:
        """Store and run."""
        return f"{self._store} run {self._run_id}"

    @property
    def kept(self) -> dict[str, Any]:
        """The run's id."""
        return {"run_id": self._run_id}

    def begin(self, run: Mapping[str, Any]) -> None:
        """Makes the run with its parameters, or goes on with it."""
        self._client = self._tracking.MlflowClient(tracking_uri=self._store)
        if self._run_id:
            self._client.update_run(self._run_id, status="RUNNING")
            return
        name = None if self._folder is None else self._folder.absolute().name
        self._run_id = self._client.create_run(self._experiment(), run_name=name).info.run_id
        parameters = [
            self._entities.Param(key, text[:_PARAMETER_CHARACTERS])
            for key, text in _flat({section: run[section] for section in _SECTIONS if section in run})
        ]
        for start in range(0, len(parameters), _PARAMETERS_AT_ONCE):
            self._client.log_batch(self._run_id, params=parameters[start : start + _PARAMETERS_AT_ONCE])

    def event(self, event: Event) -> None:
        """Keeps the values for the next batch."""
        time_ms = self._time_ms(event) if event.values else 0
        for key, value in event.values.items():
            name = _REFUSED.sub(":", key)
            self._waiting.append(self._entities.Metric(name, float(value), time_ms, event.step))
        if len(self._waiting) >= _METRICS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Sends what waits, at most 1,000 values at once."""
        while self._waiting:
            self._client.log_batch(self._run_id, metrics=self._waiting[:_METRICS_AT_ONCE])
            del self._waiting[:_METRICS_AT_ONCE]

    def end(self, report: Mapping[str, Any] | None) -> None:
        """Says how the run ended."""
        self.flush()
        stopped = "without a report" if report is None else report.get("stopped")
        if stopped:
            self._client.set_tag(self._run_id, "paceline.stopped", str(stopped)[:_PARAMETER_CHARACTERS])
        killed = stopped in ("interrupted", "terminated")
        self._client.set_terminated(self._run_id, "KILLED" if killed else "FAILED" if stopped else "FINISHED")

    def close(self) -> None:
        """Leaves the run as it is."""
        self._client = None

    def _time_ms(self, event: Event) -> int:
        """The event's time, or the nearest that MLflow takes, which is told once: steps and values are not to be lost
        for a clock that was wrong."""
        time_ms = event.time_s * 1000
        if 0 <= time_ms < _MOST_MS:
            return int(time_ms)
        if not self._is_told:
            self._is_told = True
            with suppress(Warning):  # Python was told to raise warnings, which would end the export
                warnings.warn(
                    f"MLflow takes no time of {event.time_s:g} s (step {event.step}): values of such times stand there "
                    "with the nearest time that it takes; steps and values are as they were",
                    RuntimeWarning,
                    stacklevel=2,
                )
        return _MOST_MS if time_ms > 0 else 0

    def _experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
        found = self._client.get_experiment_by_name(name)
        return self._client.create_experiment(name) if found is None else found.experiment_id


def _flat(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """``{"a": {"b": 1}}`` as ``("a/b", "1")``."""
    for key, value in plain(document).items():
        name = _REFUSED.sub(":", f"{prefix}{key}")
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}/")
        else:
            yield name, str(value)


def _check_store(store: str) -> None:
    """Raise OptionError for a store that the small MLflow package cannot open, before the run and not in it."""
    scheme = urlparse(store).scheme
    databases = ("sqlite", "postgresql", "mysql", "mssql")
    if scheme.partition("+")[0] in databases and importlib.util.find_spec("sqlalchemy") is None:
        raise OptionError(
            what=f"logging to mlflow: its store {store!r} is a database, and sqlalchemy is not installed",
            why="mlflow-skinny reaches servers; databases need what the whole package brings",
            fix="pip install 'paceline[mlflow]', or set MLFLOW_TRACKING_URI to the address of your MLflow server",
        )
    if scheme in ("", "file") and os.environ.get("MLFLOW_ALLOW_FILE_STORE", "").lower() not in ("1", "true"):
        _check_file_store(store)


def _check_file_store(store: str) -> None:
    """Newer versions of MLflow refuse folders unless a variable allows them."""
    variables = import_extra("mlflow.environment_variables", extra="mlflow")
    if hasattr(variables, "MLFLOW_ALLOW_FILE_STORE"):
        raise OptionError(
            what=f"logging to mlflow: its store {store!r} is a folder",
            why="this version of MLflow opens a folder only if it is told to",
            fix="set MLFLOW_ALLOW_FILE_STORE=true, or MLFLOW_TRACKING_URI to the address of your MLflow server",
        )
