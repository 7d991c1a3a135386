"""What the terminal shows while a run goes on.

Owns: when to draw and how a line reads.
Not here: the numbers (`telemetry.summary`), events (`telemetry.recorder`).
Invariant: an update that is not drawn costs one clock comparison; a terminal that went away never stops training.

There is no drawing thread: a thread would take the interpreter lock from the one that feeds the devices.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple, NoReturn, Protocol, cast, runtime_checkable

from paceline.base.errors import OptionError, nearest
from paceline.base.units import format_duration, format_percent, format_rate
from paceline.telemetry.summary import StepClock


@runtime_checkable
class TextStream(Protocol):
    """What is asked of the place to print to: `sys.stderr`, a file, `io.StringIO`."""

    @property
    def closed(self) -> bool: ...

    def write(self, text: str, /) -> int: ...

    def flush(self) -> None: ...

    def isatty(self) -> bool: ...


Mode = Literal["auto", "rich", "plain", "none"]
_MODES: tuple[Mode, ...] = ("auto", "rich", "plain", "none")

_RICH_EVERY_S = 0.25
_PLAIN_EVERY_S = 5.0


class ProgressState(NamedTuple):
    """Where the run is; cheap to make, because everything that costs is computed from ``clock`` when it is drawn.

    Args:
      step: updates completed.
      num_steps: updates planned; None when the data decides.
      loss: the newest loss that is computed already, or None. Reading the loss of the step in flight would make the
        host wait for the device.
      epoch: passes over the data so far, or None.
      clock: the steps' times, shared with the training loop.
    """

    step: int
    num_steps: int | None
    loss: float | None
    epoch: float | None
    clock: StepClock


@runtime_checkable
class Progress(Protocol):
    """Shows a run. Call `start` once, `update` after every step, `finish` in a ``finally``."""

    def start(self, header_lines: Iterable[str]) -> None: ...

    def update(self, state: ProgressState) -> None: ...

    def message(self, text: str) -> None: ...

    def finish(self) -> None: ...


class SilentProgress:
    """Shows nothing: for processes other than 0, and for tests."""

    def start(self, header_lines: Iterable[str]) -> None:
        """Shows nothing."""

    def update(self, state: ProgressState) -> None:
        """Shows nothing."""

    def message(self, text: str) -> None:
        """Shows nothing."""

    def finish(self) -> None:
        """Shows nothing."""


class PlainProgress:
    """Lines for a log file or a pipe: at most one in ``every_s`` seconds, and the last step always."""

    def __init__(
        self, stream: TextStream, *, every_s: int | float = _PLAIN_EVERY_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._every_s = every_s
        self._clock = clock
        self._next_s = -math.inf
        self._last: ProgressState | None = None
        self._drawn_step = -1

    def start(self, header_lines: Iterable[str]) -> None:
        """Prints the header."""
        for line in header_lines:
            self.message(line)

    def update(self, state: ProgressState) -> None:
        """Prints a line if it is time."""
        self._last = state
        if self._clock() >= self._next_s or state.step == state.num_steps:
            self._draw(state)

    def message(self, text: str) -> None:
        """Prints ``text`` at once, without the control characters that it may hold."""
        _print(self._stream, "".join(c for c in text if c.isprintable() or c in "\n\t"))

    def finish(self) -> None:
        """Prints the last step if it was not."""
        if self._last is not None:
            self._draw(self._last)

    def _draw(self, state: ProgressState) -> None:
        self._next_s = self._clock() + self._every_s
        if state.step != self._drawn_step:
            self._drawn_step = state.step
            _print(self._stream, plain_line(state))


class RichProgress:
    """A bar and a line of figures that stay at the foot of a terminal, redrawn at most once in ``every_s`` seconds.

    Needs `finish`: until then, prints of the user's own code are redirected above the bar.
    """

    def __init__(
        self, stream: TextStream, *, every_s: int | float = _RICH_EVERY_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        from rich.console import Console
        from rich.live import Live

        self._stream = stream
        self._console = Console(file=cast(Any, stream), force_terminal=True, highlight=False, markup=False, emoji=False)
        self._console.on_broken_pipe = _raise_again  # rich's own answer ends the program
        # A standard stream that goes to a file keeps going there; only what would land on the bar is redirected.
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            redirect_stdout=_is_terminal(sys.stdout),
            redirect_stderr=_is_terminal(sys.stderr),
        )
        self._every_s = every_s
        self._clock = clock
        self._next_s = -math.inf
        self._last: ProgressState | None = None
        self._gone = False
        self._started = False

    def start(self, header_lines: Iterable[str]) -> None:
        """Prints the header; the bar appears with the first update."""
        for line in header_lines:
            self.message(line)
        self._guarded(self._live.start)
        self._started = not self._gone

    def update(self, state: ProgressState) -> None:
        """Redraws if it is time."""
        self._last = state
        if self._clock() >= self._next_s or state.step == state.num_steps:
            self._draw(state)

    def message(self, text: str) -> None:
        """Prints ``text`` above the bar."""
        self._guarded(lambda: self._console.print(text, soft_wrap=True))

    def finish(self) -> None:
        """Draws the last step and gives the terminal back."""
        if self._last is not None:
            self._draw(self._last)
        if self._started:
            self._gone = False  # `stop` also gives back the redirected streams, which outlive the terminal
            self._guarded(self._live.stop)

    def _draw(self, state: ProgressState) -> None:
        self._next_s = self._clock() + self._every_s
        self._guarded(lambda: self._live.update(_bar(state), refresh=True))

    def _guarded(self, draw: Callable[[], object]) -> None:
        if self._gone:
            return
        try:
            draw()
        except OSError:
            self._gone = True
        except ValueError:
            self._gone = self._stream.closed
            if not self._gone:
                raise


def choose_progress(mode: str, stream: TextStream, *, clock: Callable[[], float] = time.monotonic) -> Progress:
    """The display for ``mode``; ``auto`` is rich on a terminal that can show it, plain elsewhere.

    Raises: OptionError: an unknown mode.
    """
    if mode not in _MODES:
        raise OptionError(
            what=f"unknown progress display {mode!r}{nearest(mode, _MODES)}",
            why="nothing would tell how the run goes",
            fix=f"use one of {', '.join(_MODES)}",
        )
    if mode == "none":
        return SilentProgress()
    if mode == "rich" or (mode == "auto" and _can_redraw(stream)):
        return RichProgress(stream, clock=clock)
    return PlainProgress(stream, clock=clock)


def plain_line(state: ProgressState) -> str:
    """``step 120/500  loss 0.4312  4,120 samples/s  step 15.2 ms (p95 17.9 ms)  input wait 0.3 %  ETA 25 s``."""
    return "  ".join([_position(state), *_figures(state), *_eta(state)])


def _position(state: ProgressState) -> str:
    return f"step {state.step:,}" if state.num_steps is None else f"step {state.step:,}/{state.num_steps:,}"


def _figures(state: ProgressState) -> list[str]:
    """What is known, each with its unit: without steps after warm-up there is no speed yet."""
    figures = [] if state.loss is None else [f"loss {state.loss:.4g}"]
    if state.clock.steps == 0:
        return figures
    summary = state.clock.summary()
    return [
        *figures,
        format_rate(state.clock.recent_samples_per_s()),
        f"step {format_duration(summary.step_p50_s)} (p95 {format_duration(summary.step_p95_s)})",
        f"input wait {format_percent(summary.input_wait_share)}",
    ]


def _eta(state: ProgressState) -> list[str]:
    """``ETA 25 s`` in a list, or an empty one when there is no end or no pace to tell it from."""
    if state.num_steps is None or state.step >= state.num_steps:
        return []
    remaining_s = state.clock.remaining_s(state.num_steps - state.step)
    return [f"ETA {format_duration(max(1, round(remaining_s)))}"] if math.isfinite(remaining_s) else []


def _bar(state: ProgressState) -> Any:
    """Two lines that never wrap: the way so far, then the figures."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    cells: list[str | ProgressBar] = [_position(state)]
    if state.num_steps:
        cells.append(ProgressBar(total=state.num_steps, completed=state.step, width=24))
        cells.append(f"{100 * state.step // state.num_steps} %")
    if state.epoch is not None:
        cells.append(f"epoch {state.epoch:.2f}")
    cells.extend(_eta(state))
    way = Table.grid(padding=(0, 2))
    for _ in cells:
        way.add_column(no_wrap=True)
    way.add_row(*cells)
    return Group(way, Text("  ".join(_figures(state)), no_wrap=True, overflow="ellipsis"))


def _raise_again() -> NoReturn:
    """Called by rich while it handles BrokenPipeError."""
    raise


def _can_redraw(stream: TextStream) -> bool:
    encoding = (getattr(stream, "encoding", None) or "").lower()
    return _is_terminal(stream) and os.environ.get("TERM", "") not in ("dumb", "unknown") and encoding.startswith("utf")


def _is_terminal(stream: TextStream | None) -> bool:
    """None stands for the standard streams of a process that has none."""
    return stream is not None and not stream.closed and stream.isatty()


def _print(stream: TextStream, text: str) -> None:
    """One line, at once. A stream that is closed or whose reader left is no reason to stop training."""
    if stream.closed:
        return
    try:
        try:
            stream.write(text + "\n")
        except UnicodeEncodeError:  # a C locale, as batch systems set it, has no micro sign
            encoding = getattr(stream, "encoding", None) or "ascii"
            stream.write(text.replace("µ", "u").encode(encoding, "replace").decode(encoding) + "\n")
        stream.flush()
    except OSError:
        return
