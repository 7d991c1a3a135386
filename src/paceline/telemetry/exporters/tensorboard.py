"""TensorBoard: event files in the folder ``tensorboard/`` of the run.

Owns: events as TensorBoard's protocol buffers, in its record format, through its own package.
Invariant: neither TensorFlow nor PyTorch is imported, whether it is installed or not.

A run that is resumed computes some steps again. TensorBoard leaves out the earlier ones when it meets a session that
starts at their step, so each ``start`` event becomes one. Its scalars are float32.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.base.errors import OptionError
from paceline.telemetry.document import plain
from paceline.telemetry.events import Event
from paceline.telemetry.exporters.exporter import import_extra

FOLDER = "tensorboard"
_OURS = "events.out.tfevents.*.paceline"


def open_exporter(folder: Path | None, *, kept: dict[str, Any], live: bool) -> TensorBoard:
    """See `make_exporter`. Raises: OptionError: no package, or a run without a folder."""
    del live  # the files are the same
    if folder is None:
        raise OptionError(
            what="log_to=('tensorboard',) without a run folder",
            why="the event files lie in the folder of the run",
            fix="pass run='runs/my_run' too",
        )
    return TensorBoard(folder / FOLDER, is_new=not kept)


class TensorBoard:
    """Writes one event file; see `Exporter`.

    Args:
      is_new: event files of earlier exports go: the run is exported anew.
    """

    def __init__(self, folder: Path, *, is_new: bool) -> None:
        self._folder = folder
        self._is_new = is_new
        self._events = import_extra("tensorboard.compat.proto.event_pb2", extra="tensorboard")
        self._summaries = import_extra("tensorboard.compat.proto.summary_pb2", extra="tensorboard")
        self._tensors = import_extra("tensorboard.compat.proto.tensor_pb2", extra="tensorboard")
        self._types = import_extra("tensorboard.compat.proto.types_pb2", extra="tensorboard")
        self._shapes = import_extra("tensorboard.compat.proto.tensor_shape_pb2", extra="tensorboard")
        # Not its EventFileWriter: that one opens files through TensorFlow where it is installed, and runs a thread.
        self._records = import_extra("tensorboard.summary.writer.record_writer", extra="tensorboard")
        self._file: io.BufferedWriter | None = None
        self._writer: Any = None

    @property
    def where(self) -> str:
        """The folder to give to ``tensorboard --logdir``."""
        return str(self._folder)

    @property
    def kept(self) -> dict[str, Any]:
        """The folder's name: that there is something is all that a later exporter must know."""
        return {"folder": self._folder.name}

    def begin(self, run: Mapping[str, Any]) -> None:
        """Makes the event file, and shows ``run.json`` in it as text."""
        self._folder.mkdir(exist_ok=True)
        if self._is_new:
            for file in self._folder.glob(_OURS):
                file.unlink()
        self._file = io.BufferedWriter(io.FileIO(self._next_file(), "x"))
        self._writer = self._records.RecordWriter(self._file)
        self._write(time_s=time.time(), file_version="brain.Event:2")
        self._write(time_s=time.time(), summary=self._summary([self._text("run", _code(run))]))

    def event(self, event: Event) -> None:
        """Values as scalars of their keys, text under ``events/<kind>``."""
        if event.kind == "start":
            session = self._events.SessionLog(status=self._events.SessionLog.START)
            self._write(time_s=event.time_s, step=event.step + 1, session_log=session)
            return
        values = [self._scalar(key, value) for key, value in event.values.items()]
        if event.text:
            values.append(self._text(f"events/{event.kind}", event.text))
        if values:
            self._write(time_s=event.time_s, step=event.step, summary=self._summary(values))

    def flush(self) -> None:
        """Hands the bytes to the kernel."""
        if self._writer is not None:
            self._writer.flush()

    def end(self, report: Mapping[str, Any] | None) -> None:
        """Shows ``report.json`` as text."""
        if report is not None:
            text = self._text("report", _code(report))
            self._write(time_s=time.time(), step=int(report.get("last_step", 0)), summary=self._summary([text]))
        self.flush()

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = self._writer = None

    def _next_file(self) -> Path:
        """TensorBoard reads files in order of their names: a later one has a later name, whatever the clock."""
        times = [int(file.name.split(".")[3]) for file in self._folder.glob(_OURS)]
        second = max([int(time.time()), *(earlier + 1 for earlier in times)])
        return self._folder / _OURS.replace("*", f"{second:010d}")

    def _write(self, *, time_s: float, step: int = 0, **content: Any) -> None:
        record = self._events.Event(wall_time=time_s, step=step, **content)
        self._writer.write(record.SerializeToString())

    def _summary(self, values: list[Any]) -> Any:
        return self._summaries.Summary(value=values)

    def _scalar(self, key: str, value: int | float) -> Any:
        return self._summaries.Summary.Value(tag=key, simple_value=float(value))

    def _text(self, tag: str, text: str) -> Any:
        plugin = self._summaries.SummaryMetadata.PluginData(plugin_name="text")
        shape = self._shapes.TensorShapeProto(dim=[self._shapes.TensorShapeProto.Dim(size=1)])
        tensor = self._tensors.TensorProto(
            dtype=self._types.DT_STRING, tensor_shape=shape, string_val=[text.encode("utf-8", "backslashreplace")]
        )
        return self._summaries.Summary.Value(
            tag=tag, tensor=tensor, metadata=self._summaries.SummaryMetadata(plugin_data=plugin)
        )


def _code(document: Mapping[str, Any]) -> str:
    """A document as a block of code in Markdown, which the text panel renders."""
    text = json.dumps(plain(document), indent=2, ensure_ascii=False)
    return "\n".join("    " + line for line in text.splitlines())
