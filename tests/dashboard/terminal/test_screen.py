"""What stands on the terminal, at any size, with any text in the files."""

from __future__ import annotations

import dataclasses
import re
import time

import pytest
from rich.cells import cell_len

from paceline.dashboard.follow.library import Library
from paceline.dashboard.terminal.frame import take_frame
from paceline.dashboard.terminal.live import neighbour
from paceline.dashboard.terminal.screen import as_text, screen
from paceline.dashboard.terminal.sparkline import PLAIN_BLOCKS
from paceline.dashboard.words import printable
from tests.dashboard.made_runs import START_S, LiveRun, make_run


@pytest.fixture
def root(tmp_path):
    """Two finished runs, and a killed one with a name in two scripts."""
    make_run(tmp_path / "image", steps=200, nan_at=(90,), restart_at=120)
    make_run(tmp_path / "slow", steps=160, processes=2, slow_process=1, wait_share=0.05, start_s=START_S + 1000)
    make_run(tmp_path / "caf\u00e9 \u6570\u5b57", steps=50, ended=False, planned=1000)
    return tmp_path


def frame_of(root, **options):
    library = Library(root)
    library.read_all()
    return take_frame(library, **options)


def lines_of(frame, *, width=80, height: int | None = 24, **options):
    return [line.plain for line in screen(frame, width=width, height=height, **options)]


def line_with(lines, start):
    (found,) = [line for line in lines if line.startswith(start)]
    return found


def test_eighty_columns_and_twenty_four_rows_hold_all_of_it(root):
    """Runs, pipeline, P and L, curves, replicas, the last events and the keys."""
    lines = lines_of(frame_of(root, shown="image"), keys=True)
    assert len(lines) == 24
    assert max(map(cell_len, lines)) <= 80
    for start in (
        "paceline watch", "> image", "  slow", "  caf\u00e9", "input -", "L ", "*bottleneck*", "image (256", "loss ",
        "samples/s ", "step p50 ", "step p95 ", "input wait ", "replicas ", "up/down",
    ):  # fmt: skip
        line_with(lines, start)
    assert any("checkpoint of step 200 saved" in line for line in lines)


def test_littles_law_stands_as_latency_times_rate_beside_what_was_counted(root):
    """P = L x T, from the numbers of the document."""
    frame = frame_of(root, shown="image")
    document = frame.pipeline
    shown = re.fullmatch(
        r"L ([\d.]+) ms x T ([\d,]+) samples/s = P ([\d,]+) rows; really in flight ([\d,]+)",
        line_with(lines_of(frame), "L "),
    )
    assert shown is not None
    latency_ms, rate, rows, counted = (float(text.replace(",", "")) for text in shown.groups())
    assert rows == pytest.approx(latency_ms / 1000 * rate, rel=0.02)
    assert (round(document["latency_s"] * 1000), counted) == (round(latency_ms), round(document["rows_in_flight"]))


def test_a_run_on_one_device_has_nothing_to_compare(tmp_path):
    """Not "yet": no audit will come. Of two devices one may."""
    for devices, said in ((1, "[.] one device: there is nothing to compare"), (2, "[..] not compared yet")):
        make_run(tmp_path / f"on-{devices}", steps=20, devices=devices)
        events = tmp_path / f"on-{devices}" / "events-0.jsonl"
        events.write_text("".join(line for line in events.open() if '"audit"' not in line))
        assert said in line_with(lines_of(frame_of(tmp_path, shown=f"on-{devices}")), "replicas ")


@pytest.mark.parametrize("width", [30, 47, 60, 80])
def test_the_sentences_on_what_is_slow_are_whole_at_any_width(root, width):
    """The bottleneck, and the process that lags, on as many lines as they take."""
    frame = frame_of(root, shown="slow")
    lines = lines_of(frame, width=width, height=40)
    assert max(map(cell_len, lines)) <= width
    together = " ".join(" ".join(lines).split())
    (slow,) = [process["why"] for process in frame.replicas["processes"] if process["straggler"]]
    for sentence in (f"*bottleneck*: {frame.pipeline['bottleneck']['why']}", f"! slow: {slow}"):
        assert sentence in together


def test_the_last_rate_beside_the_curve_is_the_one_in_the_list_of_runs(tmp_path):
    """One step in a burst: 32 rows in 1 ms after twenty in 100 ms."""
    run = LiveRun(tmp_path / "run", steps=40)
    values = {"speed/samples_per_s": 9e6, "speed/step_s": 0.001, "train/rows": 32, "train/loss": 1.0}
    run.append({"kind": "step", "step": 41, "time_s": START_S + 100, "values": values})
    lines = lines_of(frame_of(tmp_path), width=120)
    listed = line_with(lines, "> run").split()[-1]
    beside = line_with(lines, "samples/s ").split(" to ")[0].split()[-2]
    assert beside == listed


@pytest.mark.parametrize(("width", "height"), [(20, 5), (40, 10), (79, 23), (80, 24), (200, 60)])
def test_no_line_is_wider_and_no_screen_higher_than_the_terminal(root, width, height):
    """Any size, for every run."""
    for shown in ("image", "slow", "caf\u00e9 \u6570\u5b57"):
        lines = lines_of(frame_of(root, shown=shown), width=width, height=height, keys=True)
        assert len(lines) == height
        assert max(map(cell_len, lines)) <= width


def test_stages_stand_over_their_times_and_shares_with_the_bottleneck_between_stars(root):
    """The slow process of the run waits 30 % of each step for input, by its making."""
    frame = frame_of(root, shown="slow")
    lines = lines_of(frame, width=160)
    number, names = next((n, line) for n, line in enumerate(lines) if line.startswith("*input*"))
    assert re.split(" -+> ", names)[1].strip() == "prefetch"
    times, shares = lines[number + 1], lines[number + 2]
    for column, stage in enumerate(frame.pipeline["stages"]):
        start = names.index(("*input*", "prefetch", "shard", "fwd/bwd", "all-reduce", "update", "output")[column])
        assert times[start] != " "
        assert (shares[start : start + 1].strip() != "") is (stage["share"] is not None)
    assert shares.startswith("30 %")
    why = frame.pipeline["bottleneck"]["why"]
    assert "30%" in why and line_with(lines, "*bottleneck*") == f"*bottleneck*: {why}"


def test_nothing_is_told_by_colour_alone(root):
    """The plain text marks the shown run, the bottleneck and what is not finite."""
    text = as_text(screen(frame_of(root, shown="image"), width=100))
    assert "> image" in text and "*fwd/bwd*" in text
    loss = next(line for line in text.splitlines() if line.startswith("loss "))
    assert loss.count("!") == 1


def test_a_device_that_differs_is_an_x_with_its_leaf(tmp_path):
    """And word of the audit; the tiles of the others stay equal."""
    make_run(tmp_path / "odd", steps=60, diverges_at=50)
    line = line_with(lines_of(frame_of(tmp_path), width=120), "replicas")
    tiles = line.partition("[")[2].partition("]")[0]
    assert sorted(tiles) == ["=", "=", "=", "X"]
    assert f"device {tiles.index('X')} DIFFERS in " in line and "audit at step 50" in line


def test_a_slow_process_is_named(root):
    assert "process 1 waits" in line_with(lines_of(frame_of(root, shown="slow")), "! slow: ")


def test_control_characters_of_files_never_reach_the_terminal(tmp_path):
    """An escape in a notice would be obeyed; brackets are no markup."""
    run = LiveRun(tmp_path / "run", steps=10)
    text = "\x1b[2J [red]caf\u00e9[/red]\nnext"
    run.append({"kind": "notice", "step": 10, "time_s": START_S + 1, "values": {}, "text": text})
    shown = "\n".join(lines_of(frame_of(tmp_path), width=120))
    assert "\x1b" not in shown
    assert " [2J [red]caf\u00e9[/red] next" in shown
    assert printable("a\tb\x07c\u202ed") == "a b c d"


def test_an_empty_folder_and_one_that_is_not_there_say_so(tmp_path):
    """No error, and no pipeline."""
    assert lines_of(frame_of(tmp_path))[1] == "no run here yet; it will show when it begins"
    lines = lines_of(frame_of(tmp_path / "later"), width=300)
    assert any("runs will show when it is" in line for line in lines)


def test_a_run_without_steps_or_events_is_shown_as_far_as_it_is(tmp_path):
    """run.json alone, and a folder that is damaged."""
    make_run(tmp_path / "young", steps=0, ended=False)
    (tmp_path / "young" / "events-0.jsonl").unlink()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    for shown in ("young", "broken"):
        lines = lines_of(frame_of(tmp_path, shown=shown))
        assert any(line.startswith(f"> {shown}") for line in lines)
        assert any(line.startswith("! ") for line in lines)


def test_the_queue_is_told_as_a_mean(tmp_path):
    """Two batches ready at half of the last steps, one at the others."""
    run = LiveRun(tmp_path / "a", steps=20)
    for step in range(50):
        run.step(input__queued_batches=2 if step % 2 else 1)
    assert any("1.5 of 2" in line for line in lines_of(frame_of(tmp_path, shown="a")))


def test_of_many_runs_those_around_the_shown_one_stand_in_the_list(tmp_path):
    """Twenty runs on 24 rows; up and down go along the list and stop at its ends."""
    for number in range(20):
        make_run(tmp_path / f"run{number:02}", steps=5, start_s=START_S + 1000 * number)
    frame = frame_of(tmp_path, shown="run10")
    shown = [line[:7] for line in lines_of(frame) if line[2:5] == "run" and line[5:7].isdigit()]
    assert "> run10" in shown and 2 <= len(shown) < 9
    assert neighbour(frame, 1) == "run09" and neighbour(frame, -1) == "run11"
    assert neighbour(frame_of(tmp_path, shown="run19"), -1) == "run19"
    assert neighbour(frame_of(tmp_path, shown="run00"), 1) == "run00"


def test_the_newest_run_that_goes_on_is_shown_first(tmp_path):
    """A finished run may be newer."""
    make_run(tmp_path / "old", steps=5, ended=False, planned=100)
    make_run(tmp_path / "new", steps=5, start_s=START_S + 1000)
    assert frame_of(tmp_path, now_s=START_S + 1).shown == "old"
    assert frame_of(tmp_path, now_s=START_S + 10**6).shown == "new"


def test_a_terminal_that_is_not_utf8_gets_plain_curves(root):
    """Every character that we draw ourselves is ASCII then."""
    lines = lines_of(frame_of(root, shown="image"), blocks=PLAIN_BLOCKS)
    drawn = [line for line in lines if line.startswith(("loss ", "samples/s ", "replicas "))]
    assert len(drawn) == 3 and all(line.isascii() for line in drawn)


@pytest.mark.parametrize(
    ("time_s", "said"),
    [(1e300, "1e+300 s"), (1e17, "1e+17 s"), (-1e17, "-1e+17 s"), (1e18, "1e+18 s"), (-1e300, "-1e+300 s")],
)
def test_a_time_that_no_calendar_has_is_shown_as_a_number(tmp_path, time_s, said):
    """Clocks of devices without a battery, and files that somebody changed."""
    run = LiveRun(tmp_path / "run", steps=10)
    run.append({"kind": "notice", "step": 10, "time_s": time_s, "values": {}, "text": "an odd clock"})
    lines = lines_of(frame_of(tmp_path), width=120)
    assert any(line.startswith(f"{said} step ") and "an odd clock" in line for line in lines)


def test_an_event_that_is_not_of_today_has_its_date(tmp_path):
    """The time alone would pass for today's."""
    run = LiveRun(tmp_path / "run", steps=10)
    now_s = time.time()
    for time_s, text in ((now_s - 3 * 86400, "some days ago"), (now_s, "just now")):
        run.append({"kind": "notice", "step": 10, "time_s": time_s, "values": {}, "text": text})
    lines = lines_of(frame_of(tmp_path), width=120, height=40)
    (old,) = [line for line in lines if "some days ago" in line]
    (new,) = [line for line in lines if "just now" in line]
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d step ", old)
    assert re.match(r"\d\d:\d\d:\d\d step ", new)


def test_the_problems_of_the_shown_run_come_before_those_of_the_folder(tmp_path):
    """Those that find no room are counted; a snapshot has all."""
    make_run(tmp_path / "run", steps=10)
    (tmp_path / "run" / "program.json").write_text("{")
    frame = dataclasses.replace(frame_of(tmp_path), problems=["folder one", "folder two", "folder three"])
    own = frame.summary["problems"]
    assert len(own) == 1
    told = [line for line in lines_of(frame, width=400) if line.startswith("! ")]
    assert told == [f"! {own[0]}", "! folder one", "! and 2 more: --terminal --once shows all"]
    told = [line for line in lines_of(frame, width=400, height=None) if line.startswith("! ")]
    assert told == [f"! {own[0]}", "! folder one", "! folder two", "! folder three"]


def test_a_snapshot_lists_all_runs_and_a_screen_says_how_many_more(tmp_path):
    """Thirty runs."""
    for number in range(30):
        make_run(tmp_path / f"run{number:02}", steps=2, start_s=START_S + 1000 * number)
    frame = frame_of(tmp_path)
    for height, all_of_them in ((None, True), (24, False), (60, False)):
        lines = lines_of(frame, height=height)
        listed = [line for line in lines if re.match(r"[> ] run\d\d ", line)]
        assert (len(listed) == 30) is all_of_them
        more = [line for line in lines if re.fullmatch(r"  \d+ more", line)]
        assert more == ([] if all_of_them else [f"  {30 - len(listed)} more"])
