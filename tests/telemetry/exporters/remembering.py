"""An exporter that remembers what it was given, and fails or hangs where a test says so."""

from __future__ import annotations

import threading


class Remembering:
    """Calls in order; `fails_at` names the call that raises, `gate` holds every event until it is set."""

    where = "memory"

    def __init__(self, *, fails_at: str | None = None, gate: threading.Event | None = None) -> None:
        self.calls: list[str] = []
        self.events = []
        self.run = None
        self.report = None
        self.fails_at = fails_at
        self.gate = gate
        self.closed = threading.Event()
        self.waits = threading.Event()

    @property
    def kept(self):
        return {"events": len(self.events)}

    def _called(self, name):
        if not self.calls or self.calls[-1] != name:
            self.calls.append(name)
        if self.fails_at == name:
            raise ConnectionError(f"no {name}\ntoday")

    def begin(self, run):
        self.run = run
        self._called("begin")

    def event(self, event):
        if self.gate is not None:
            self.waits.set()
            self.gate.wait(30)
        self._called("event")
        self.events.append(event)

    def flush(self):
        self._called("flush")

    def end(self, report):
        self.report = report
        self._called("end")

    def close(self):
        self.closed.set()
        self._called("close")
