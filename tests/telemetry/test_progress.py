"""What the terminal shows, and when."""

from __future__ import annotations

import io
import os
import sys

import pytest

from paceline.base.errors import OptionError
from paceline.telemetry.progress import (
    PlainProgress,
    Progress,
    ProgressState,
    RichProgress,
    SilentProgress,
    choose_progress,
    plain_line,
)
from paceline.telemetry.summary import StepClock


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self):
        return True


class Gone(Terminal):
    """A stream whose reader has left."""

    def write(self, _text):
        raise BrokenPipeError(32, "Broken pipe")


class Now:
    """A clock that moves when told."""

    def __init__(self):
        self.s = 0.0
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return self.s


def state(step, num_steps: int | None = 500, loss: float | None = 0.4312, timed=True):
    clock = StepClock()
    if timed:
        for _ in range(19):
            clock.add(0.015, wait_s=0.000045, rows=62)
    return ProgressState(step, num_steps, loss, 1.5, clock)


def test_a_plain_line_reads_like_a_sentence_with_units():
    """By pencil: 62 rows / 15 ms = 4133; 380 steps of 15 ms = 5.7 s; 45 µs of 15 ms wait."""
    assert plain_line(state(120)) == (
        "step 120/500  loss 0.4312  4,133 samples/s  step 15 ms (p95 15 ms)  input wait 0.3 %  ETA 6 s"
    )


def test_what_is_not_known_yet_is_left_out():
    """No speed before the first step after warm-up, no end without a number of steps, no ETA at the end."""
    assert plain_line(state(1, loss=None, timed=False)) == "step 1/500"
    assert plain_line(state(1200, num_steps=None, loss=float("nan"))).startswith("step 1,200  loss nan  4,133")
    assert "ETA" not in plain_line(state(7, num_steps=None))
    assert "ETA" not in plain_line(state(500))


def test_plain_progress_prints_seldom_and_the_last_step_always():
    """Steps 1 to 12, one a second, every 5 s: the first, the sixth, the eleventh and the last."""
    stream, now = io.StringIO(), Now()
    progress = PlainProgress(stream, every_s=5, clock=now)
    progress.start(["image  4 devices"])
    for step in range(1, 13):
        progress.update(state(step, num_steps=12))
        now.s += 1
    lines = stream.getvalue().splitlines()
    assert lines[0] == "image  4 devices"
    assert [line.split("  ")[0] for line in lines[1:]] == ["step 1/12", "step 6/12", "step 11/12", "step 12/12"]


def test_a_run_that_stops_early_shows_its_last_step():
    """Finish prints what no update did, once."""
    stream = io.StringIO()
    progress = PlainProgress(stream, clock=Now())
    progress.update(state(1))
    progress.update(state(2))
    progress.finish()
    progress.finish()
    assert [line.split("  ")[0] for line in stream.getvalue().splitlines()] == ["step 1/500", "step 2/500"]


@pytest.mark.parametrize("kind", [PlainProgress, RichProgress])
def test_an_update_that_is_not_drawn_costs_one_look_at_the_clock(kind):
    """Nothing is formatted, summed or written."""
    stream, now = io.StringIO(), Now()
    progress = kind(stream, clock=now)
    progress.update(state(1))
    written, looks = stream.tell(), now.calls
    progress.update(state(2))
    assert now.calls == looks + 1
    assert stream.tell() == written


def test_plain_progress_writes_no_control_characters():
    """A log file stays readable whatever a message holds."""
    stream = io.StringIO()
    PlainProgress(stream).message("\x1b[31mred\x1b[0m\r\ttab\nnext")
    assert stream.getvalue() == "[31mred[0m\ttab\nnext\n"


def test_a_stream_that_knows_only_ascii_gets_ascii():
    """Batch systems set the C locale, which has no micro sign."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, "ascii", write_through=True)
    PlainProgress(stream).message("step 850 µs für 数")
    assert raw.getvalue() == b"step 850 us f?r ?\n"


def test_rich_progress_shows_every_figure_within_the_width(monkeypatch):
    """Two lines at the foot; brackets in a message are words and not markup; the cursor is given back."""
    monkeypatch.setenv("COLUMNS", "100")
    stream = Terminal()
    progress = RichProgress(stream, clock=Now())
    progress.start(["image [4 devices]"])
    progress.update(state(120))
    progress.message("evaluate [step 120] loss 0.5")
    progress.finish()
    text = stream.getvalue()
    for part in (
        "image [4 devices]",
        "step 120/500",
        "24 %",
        "epoch 1.50",
        "ETA 6 s",
        "loss 0.4312",
        "4,133 samples/s",
    ):
        assert part in text
    for part in ("step 15 ms (p95 15 ms)", "input wait 0.3 %", "evaluate [step 120] loss 0.5"):
        assert part in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def test_rich_progress_keeps_to_two_lines_on_a_narrow_terminal(monkeypatch):
    """A line that wrapped would leave its rest behind at every redraw."""
    monkeypatch.setenv("COLUMNS", "30")
    stream = Terminal()
    progress = RichProgress(stream, clock=Now())
    progress.start([])
    progress.update(state(120))
    assert stream.getvalue().count("\n") == 1


def test_rich_progress_redraws_four_times_a_second_at_most():
    """100 updates in one second: at 0, 0.25, 0.5 and 0.75 s."""
    stream, now = Terminal(), Now()
    progress = RichProgress(stream, clock=now)
    progress.start([])
    drawn = 0
    for update in range(100):
        now.s = update / 100
        before = stream.tell()
        progress.update(state(update))
        drawn += stream.tell() > before
    progress.finish()
    assert drawn == 4


@pytest.mark.parametrize("to_terminal", [True, False])
def test_rich_progress_redirects_prints_only_where_they_would_land_on_the_bar(monkeypatch, to_terminal):
    """``train > results.txt`` keeps its results in the file while the bar is on stderr."""
    out = Terminal() if to_terminal else io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    progress = RichProgress(Terminal(), clock=Now())
    progress.start([])
    assert (sys.stdout is out) != to_terminal
    progress.finish()
    assert sys.stdout is out


@pytest.mark.parametrize("kind", [PlainProgress, RichProgress])
def test_a_reader_that_left_stops_neither_training_nor_the_streams(monkeypatch, kind):
    """``train | head`` goes on training, though rich would exit; redirected streams are given back."""
    out = Terminal()
    monkeypatch.setattr(out, "fileno", lambda: -1)  # rich closes the real one before it exits
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    monkeypatch.setattr(sys, "stdout", out)
    progress = kind(Gone())
    progress.start(["header"])
    for step in (1, 500):
        progress.update(state(step))
    progress.message("text")
    progress.finish()
    assert sys.stdout is out


@pytest.mark.parametrize("kind", [PlainProgress, RichProgress])
def test_a_stream_that_is_closed_in_the_middle_is_no_error(monkeypatch, kind):
    """The same for a stream that its owner closed."""
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    stream = Terminal()
    progress = kind(stream, clock=Now())
    progress.start(["header"])
    progress.update(state(1))
    stream.close()
    progress.update(state(500))
    progress.message("text")
    progress.finish()
    assert sys.stdout is out


def test_the_mode_and_the_stream_choose_the_display(monkeypatch):
    """Rich only on a terminal that can move its cursor and knows the characters."""
    monkeypatch.setenv("TERM", "xterm")
    latin = Terminal()
    latin.encoding = "latin-1"
    assert isinstance(choose_progress("auto", Terminal()), RichProgress)
    assert isinstance(choose_progress("auto", io.StringIO()), PlainProgress)
    assert isinstance(choose_progress("auto", latin), PlainProgress)
    assert isinstance(choose_progress("plain", Terminal()), PlainProgress)
    assert isinstance(choose_progress("rich", io.StringIO()), RichProgress)
    assert isinstance(choose_progress("none", Terminal()), SilentProgress)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(choose_progress("auto", Terminal()), PlainProgress)


def test_an_unknown_mode_names_the_known_ones():
    """With the nearest."""
    with pytest.raises(OptionError, match="perhaps 'plain'") as caught:
        choose_progress("plane", io.StringIO())
    assert caught.value.fix == "use one of auto, rich, plain, none"


@pytest.mark.parametrize("mode", ["rich", "plain", "none"])
def test_every_display_keeps_one_contract(mode):
    """The loop does not ask which one it has."""
    progress = choose_progress(mode, io.StringIO())
    assert isinstance(progress, Progress)
    progress.start(["header"])
    progress.update(state(1))
    progress.message("text")
    progress.finish()
    progress.finish()
