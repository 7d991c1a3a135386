"""One run, whatever its files hold."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from paceline.dashboard.follow import run as run_module
from paceline.dashboard.follow.blocks import BlockStore
from paceline.dashboard.follow.cursor import decode_cursor
from paceline.dashboard.follow.run import Run
from tests.dashboard.made_runs import START_S, LiveRun, make_run

SLICE = 4096


def read(run: Run, *, slice_bytes: int = SLICE) -> list:
    """Everything that is there; returns what was new."""
    run.refresh()
    run.look()
    found = []
    while (fresh := run.read(slice_bytes)) is not None:
        found.append(fresh)
    return found


def opened(folder: Path) -> Run:
    run = Run(folder, id=folder.name, root=folder.parent, store=BlockStore())
    read(run)
    return run


def problems(run: Run) -> list[str]:
    return [words.key for words in run.problems]


def losses(run: Run) -> dict[int, float]:
    found = run.columns().whole("train/loss")
    return dict(zip(found.step.tolist(), found.value.tolist(), strict=True))


def written(folder: Path) -> dict[int, float]:
    """Step and loss from the file, the later of two."""
    lines = [json.loads(line) for line in (folder / "events-0.jsonl").read_text().splitlines()]
    return {line["step"]: float(line["values"]["train/loss"]) for line in lines if line["kind"] == "step"}


@pytest.mark.parametrize("slice_bytes", [700, 4096, 1 << 20])
def test_a_run_reads_as_it_was_written_whatever_a_slice_takes(tmp_path, slice_bytes):
    """Steps, processes, documents, marks."""
    folder = make_run(tmp_path / "a", steps=120, processes=2)
    run = Run(folder, id="a", root=tmp_path, store=BlockStore())
    read(run, slice_bytes=slice_bytes)
    assert losses(run) == written(folder)
    assert (run.processes, run.main, run.caught_up, run.problems) == ([0, 1], 0, True, [])
    assert len(run.columns(1)) == 120
    assert run.table(0, "evaluation").whole("evaluate/loss").step.tolist() == [50, 100]
    assert [mark.step for mark in run.marks if mark.kind == "checkpoint"] == [50, 100]
    assert (run.document or {})["task"] == "image"
    assert run.read_bytes == run.size_bytes > 0


def test_what_is_appended_comes_as_fresh_events_once(tmp_path):
    live = LiveRun(tmp_path / "a")
    run = opened(tmp_path / "a")
    live.step()
    live.step()
    fresh = read(run)
    assert [event.step for part in fresh for event in part.events] == [1, 2]
    assert fresh[0].position.offset == os.path.getsize(tmp_path / "a" / "events-0.jsonl")
    assert read(run) == []


def test_a_torn_last_line_waits_until_it_is_whole(tmp_path):
    live = LiveRun(tmp_path / "a")
    live.step()
    live.append('{"kind":"step","step":2,"time_s":%f,"values":{"train/l' % (START_S + 9))
    run = opened(tmp_path / "a")
    assert (list(losses(run)), run.skipped) == ([1], 0)
    live.append('oss":0.5}}\n')
    read(run)
    assert losses(run)[2] == 0.5
    assert run.problems == []


def test_a_resumed_run_holds_each_step_once_and_marks_the_restart(tmp_path):
    """Killed before step 130, resumed from 100: the later loss of steps 101 to 129 counts."""
    folder = make_run(tmp_path / "a", steps=200, restart_at=130)
    run = opened(folder)
    assert losses(run) == written(folder)
    assert list(losses(run)) == list(range(1, 201))
    assert [(mark.kind, mark.step) for mark in run.marks if "start" in mark.kind] == [("start", 0), ("restart", 100)]


def test_steps_that_will_be_computed_again_are_gone_at_the_restart(tmp_path):
    """The curve ends where the run stands, not where it was killed."""
    live = LiveRun(tmp_path / "a")
    for _ in range(5):
        live.step()
    live.append({"kind": "start", "step": 3, "time_s": START_S, "values": {}})
    run = opened(tmp_path / "a")
    assert list(losses(run)) == [1, 2, 3]


def test_damaged_lines_and_unknown_kinds_are_told_and_spoil_nothing(tmp_path):
    live = LiveRun(tmp_path / "a")
    live.step()
    live.append("\x00\x00garbage\n")
    live.append('{"kind":"step"}\n')
    live.append({"kind": "teleport", "step": 1, "time_s": 1.0, "values": {"x": [1]}})
    live.step()
    run = opened(tmp_path / "a")
    assert list(losses(run)) == [1, 2]
    assert (run.skipped, run.unknown) == (2, {"teleport": 1})
    assert problems(run) == ["problem.lines_damaged", "problem.kinds_unknown"]
    assert run.problems[0].text == "damaged lines passed over in the events of process 0: 2"


@pytest.mark.parametrize("damage", [{"step": -3}, {"step": 2**53 + 1}, {"step": 10**30}])
def test_a_step_that_no_run_can_make_is_a_damaged_line(tmp_path, damage):
    """Among good lines, that the last line of the file and the first are; nothing of it is shown."""
    live = LiveRun(tmp_path / "a")
    live.step()
    live.append({"kind": "step", "step": 2, "time_s": START_S, "values": {"train/loss": 9.0}} | damage)
    live.step()
    run = opened(tmp_path / "a")
    assert (list(losses(run)), run.skipped, problems(run)) == ([1, 2], 1, ["problem.lines_damaged"])


@pytest.mark.parametrize(("make", "key"), [("mkdir", "folder"), ("mkfifo", "pipe")])
def test_what_is_no_file_of_events_is_called_what_it_is(tmp_path, make, key):
    """And the other process is read all the same. A named pipe has no writer: to open it would wait for ever."""
    folder = make_run(tmp_path / "a", steps=3)
    getattr(os, make)(folder / "events-1.jsonl")
    run = opened(folder)
    assert (len(losses(run)), problems(run)) == (3, [f"problem.events_{key}"])
    assert run.problems[0].text.startswith("events-1.jsonl is a ")


def test_a_replaced_file_begins_anew_without_what_the_old_one_told(tmp_path):
    """Steps, marks, counts and damaged lines of the old file are void."""
    live = LiveRun(tmp_path / "a", steps=60, nan_at=(10,))
    live.append("damage\n")
    run = opened(tmp_path / "a")
    file = tmp_path / "a" / "events-0.jsonl"
    lines = file.read_text().splitlines()[:4]
    file.unlink()
    file.write_text("\n".join(lines) + "\n")
    run.refresh()
    assert run.look() == [0]
    read(run)
    assert list(losses(run)) == [1, 2, 3]
    assert [mark.kind for mark in run.marks] == ["start"]
    assert run.skipped == 0


def test_numbers_that_are_not_finite_are_kept_and_marked_once_a_stretch(tmp_path):
    """Three NaN in a row are one mark; a later one is another."""
    folder = make_run(tmp_path / "a", steps=60, nan_at=(5, 6, 7, 40), ended=False)
    for slice_bytes in (1500, 1 << 20):  # a line has some 600
        run = Run(folder, id="a", root=tmp_path, store=BlockStore())
        read(run, slice_bytes=slice_bytes)
        marks = [(mark.step, mark.text) for mark in run.marks if mark.kind == "nonfinite"]
        assert marks == [(5, "train/loss is nan"), (40, "train/loss is nan")]
        assert [step for step, loss in losses(run).items() if loss != loss] == [5, 6, 7, 40]


@pytest.mark.parametrize("value", ["inf", "-inf"])
def test_infinities_are_kept(tmp_path, value):
    live = LiveRun(tmp_path / "a")
    live.step(train__loss=value)
    assert losses(opened(tmp_path / "a")) == {1: float(value)}


def test_numbers_beyond_what_a_float_holds_do_not_stop_the_reader(tmp_path):
    """Whole numbers on a line have no limit, nor have steps."""
    live = LiveRun(tmp_path / "a")
    live.append('{"kind":"step","step":1,"time_s":1.0,"values":{"train/loss":1' + "0" * 400 + "}}\n")
    live.append('{"kind":"step","step":1' + "0" * 40 + ',"time_s":1.0,"values":{"train/loss":1}}\n')
    live.append({"kind": "step", "step": 2, "time_s": 2.0, "values": {"train/loss": 0.5}})
    run = opened(tmp_path / "a")
    assert losses(run)[2] == 0.5


def test_a_clock_that_jumps_back_is_told_and_the_order_is_that_of_the_steps(tmp_path):
    live = LiveRun(tmp_path / "a")
    live.step(time_s=START_S + 10)
    live.step(time_s=START_S + 7210)
    live.step(time_s=START_S + 11)
    run = opened(tmp_path / "a")
    assert list(losses(run)) == [1, 2, 3]
    assert [(words.key, words.values) for words in run.problems] == [
        ("problem.clock", {"process": 0, "step": 3, "seconds": 7199.0})
    ]


def test_a_clock_that_jumps_back_often_is_told_with_the_largest_jump(tmp_path):
    """The last one need not be the largest; read at once or as it comes."""
    live = LiveRun(tmp_path / "a")
    followed = opened(tmp_path / "a")
    for time_s in (10, 7210, 11, 12, 7, 8):
        live.step(time_s=START_S + time_s)
        read(followed)
    for run in (followed, opened(tmp_path / "a")):
        (words,) = run.problems
        assert words.values == {"process": 0, "count": 2, "seconds": 7199.0, "step": 5}
        assert words.text.endswith("went back 2 times, by 7199 s at most, the last time at step 5")


def test_a_process_that_appears_late_is_followed(tmp_path):
    LiveRun(tmp_path / "a")
    run = opened(tmp_path / "a")
    late = make_run(tmp_path / "b", steps=3, processes=2) / "events-1.jsonl"
    late.rename(tmp_path / "a" / "events-1.jsonl")
    read(run)
    assert run.processes == [0, 1]
    assert len(run.columns(1)) == 3


def test_what_all_processes_tell_makes_one_mark(tmp_path):
    """Each process writes a start and the same notice; only the notice of its own is a further mark."""
    make_run(tmp_path / "a", steps=1, processes=3, ended=False)
    for process in range(3):
        with open(tmp_path / "a" / f"events-{process}.jsonl", "a") as file:
            for text in ("replicas repaired", f"own {process}"):
                event = {"kind": "notice", "step": 1, "time_s": START_S, "values": {}, "text": text}
                file.write(json.dumps(event) + "\n")
    marks = opened(tmp_path / "a").marks
    assert [mark.kind for mark in marks].count("start") == 1
    assert sorted(mark.text for mark in marks if mark.text) == ["own 0", "own 1", "own 2", "replicas repaired"]


@pytest.mark.parametrize("name", ["run.json", "program.json", "report.json"])
@pytest.mark.parametrize("content", ["{", "[1]", "", "\x00", "[" * 10_000])
def test_a_damaged_document_is_told_and_the_rest_is_shown(tmp_path, name, content):
    folder = make_run(tmp_path / "a", steps=3)
    (folder / name).write_text(content)
    run = opened(folder)
    assert problems(run) == ["problem.document_damaged"]
    assert run.problems[0].values["file"] == name
    assert len(losses(run)) == 3
    assert run.state(START_S) == ("damaged" if name == "run.json" else "finished")


def test_a_run_without_run_json_is_told_and_shown(tmp_path):
    folder = make_run(tmp_path / "a", steps=3)
    (folder / "run.json").unlink()
    run = opened(folder)
    assert (problems(run), run.document, len(losses(run))) == (["problem.run_missing"], None, 3)


def test_a_document_that_is_written_again_is_read_again(tmp_path):
    """A resumed run replaces run.json; a report comes at the end."""
    folder = make_run(tmp_path / "a", steps=3, ended=False)
    run = opened(folder)
    assert run.report is None
    (folder / "report.json").write_text('{"steps": 3}')
    (folder / "run.json").write_text('{"task": "another"}')
    assert run.refresh()
    assert (run.report, run.document) == ({"steps": 3}, {"task": "another"})


def test_an_empty_folder_and_a_run_without_events_are_empty(tmp_path):
    (tmp_path / "a").mkdir()
    folder = make_run(tmp_path / "b", steps=0)
    (folder / "events-0.jsonl").write_text("")
    first, second = opened(tmp_path / "a"), opened(folder)
    assert (first.state(START_S), problems(first)) == ("empty", ["problem.nothing"])
    assert (second.state(START_S), problems(second)) == ("empty", ["problem.no_events"])


def test_a_file_that_leads_out_of_the_root_is_not_read(tmp_path):
    """Neither a document nor events: the problem names the file and nothing of its content."""
    outside = make_run(tmp_path / "outside", steps=7)
    root = tmp_path / "root"
    folder = make_run(root / "a", steps=2)
    for name in ("events-1.jsonl", "report.json"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(outside / name.replace("1", "0"))
    run = opened(folder)
    assert run.processes == [0]
    assert run.report is None
    assert problems(run) == ["problem.outside", "problem.outside"]


def test_the_newest_event_is_known_before_the_file_is_read(tmp_path):
    """So that the list of runs is right at once."""
    folder = make_run(tmp_path / "a", steps=1000, ended=False)
    run = Run(folder, id="a", root=tmp_path, store=BlockStore())
    run.refresh()
    last = run.last_event(0)
    assert last is not None
    assert (last.kind, last.step) == ("audit", 1000)
    assert run.read_bytes == 0


def test_a_long_run_has_a_picture_before_it_is_read(tmp_path, monkeypatch):
    """Rows of the run from its begin to its end; all of them once it is read."""
    monkeypatch.setattr(run_module, "_PREVIEWED_FROM_BYTES", 1000)
    folder = make_run(tmp_path / "a", steps=5000)
    run = Run(folder, id="a", root=tmp_path, store=BlockStore())
    run.refresh()
    assert run.preview()
    early, expected = losses(run), written(folder)
    assert (min(early), max(early)) == (1, 5000)
    assert 300 < len(early) < 5000
    assert all(expected[step] == loss for step, loss in early.items())
    read(run)
    assert losses(run) == expected
    assert not run.preview()


def test_a_run_that_is_forgotten_is_read_again(tmp_path):
    folder = make_run(tmp_path / "a", steps=300)
    run = opened(folder)
    before, marks = losses(run), list(run.marks)
    run.forget()
    assert not run.caught_up
    read(run)
    assert (losses(run), run.marks) == (before, marks)


def test_a_cursor_goes_on_exactly_where_it_was(tmp_path):
    """What was written in between, in every process, once."""
    live = LiveRun(tmp_path / "a", processes=2)
    run = opened(tmp_path / "a")
    cursor = run.cursor
    live.step()
    live.append({"kind": "notice", "step": 1, "time_s": START_S, "values": {}, "text": "n"}, process=1)
    read(run)
    missed = run.events_after(decode_cursor(cursor)["a"])
    assert missed is not None
    assert [(part.process, [event.kind for event in part.events]) for part in missed] == [
        (0, ["step"]),
        (1, ["notice"]),
    ]
    assert run.events_after(decode_cursor(run.cursor)["a"]) == []


def test_a_cursor_of_another_file_or_of_long_ago_is_told(tmp_path, monkeypatch):
    """The page then fetches the series anew."""
    live = LiveRun(tmp_path / "a")
    live.step()
    run = opened(tmp_path / "a")
    positions = run.positions
    other = {0: positions[0]._replace(generation="other")}
    ahead = {0: positions[0]._replace(offset=10**9)}
    inside = {0: positions[0]._replace(offset=positions[0].offset - 3)}
    assert run.events_after(other) is None
    assert run.events_after(ahead) is None
    assert run.events_after({**positions, 5: positions[0]}) is None
    assert sum(len(part.events) for part in run.events_after(inside) or []) == 0
    live.step()
    read(run)
    cut_shorter = os.path.getsize(tmp_path / "a" / "events-0.jsonl") - 5
    os.truncate(tmp_path / "a" / "events-0.jsonl", cut_shorter)
    assert run.events_after(positions) is None
    monkeypatch.setattr(run_module, "GAP_BYTES", 10)
    assert run.events_after(positions) is None


def test_a_file_that_was_removed_keeps_what_was_read(tmp_path):
    folder = make_run(tmp_path / "a", steps=3)
    run = opened(folder)
    (folder / "events-0.jsonl").unlink()
    read(run)
    assert (len(losses(run)), problems(run)) == (3, ["problem.file_gone"])


def test_states_follow_the_last_event(tmp_path):
    """Ended as planned, ended by an error, going on, silent."""
    states = {}
    for name, changes in {
        "ended": {},
        "failed": {"stopped": "NonFiniteError: loss"},
        "stopped": {"stopped": "interrupted"},
        "open": {"ended": False},
    }.items():
        run = opened(make_run(tmp_path / name, steps=100, **changes))
        states[name] = run.state(START_S + 10)
        if name == "open":
            os.utime(tmp_path / name / "events-0.jsonl", (START_S, START_S))
            silent = opened(tmp_path / name)
            assert silent.state(START_S + 3600) == "silent"
    assert states == {"ended": "finished", "failed": "failed", "stopped": "stopped", "open": "running"}


def test_a_link_that_takes_a_file_s_place_while_it_is_watched_is_not_read(tmp_path):
    """Also between two looks at the folder: what counts is what was opened."""
    make_run(tmp_path / "outside", steps=50)
    folder = make_run(tmp_path / "root" / "a", steps=2, ended=False)
    run = opened(folder)
    for name in ("events-0.jsonl", "run.json"):
        (folder / name).unlink()
        (folder / name).symlink_to(tmp_path / "outside" / name)
    for _ in range(2):
        run.look()
        run.read(SLICE)
        assert len(losses(run)) <= 2
        for document in run._documents.values():  # as if the folder had not been listed again
            document.refresh()
        assert run.document is None
    assert "problem.file_unreadable" in problems(run)


def test_documents_are_given_as_every_json_writer_takes_them(tmp_path):
    """Bare NaN, and text that is no Unicode, as other versions and people may write them."""
    folder = make_run(tmp_path / "a", steps=1)
    (folder / "run.json").write_text('{"task": "\\ud800", "x": [NaN, -Infinity, 1.5, 3, null, true]}')
    document = opened(folder).document
    assert document == {"task": "\\ud800", "x": ["nan", "-inf", 1.5, 3, None, True]}
    json.dumps(document, allow_nan=False).encode()


def test_events_that_come_one_by_one_give_what_a_later_reader_finds(tmp_path):
    """Numbers, derived ones included, marks and jumps of the clock: two ways through the code, one result."""
    live = LiveRun(tmp_path / "a")
    followed = opened(tmp_path / "a")
    for step in range(1, 131):
        extra = {"memory__in_use_bytes": 5.0 * step} if step % 10 == 0 else {}
        loss = "nan" if step in (60, 61, 90) else 1 / step
        time_s = START_S + step - (600 if step == 100 else 0)
        live.step(train__loss=loss, speed__step_s=step % 7 + 0.1, time_s=time_s, **extra)
        if step == 120:
            live.last = 110
            live.append({"kind": "start", "step": 110, "time_s": START_S + 121, "values": {}})
        read(followed)
    late = opened(tmp_path / "a")
    assert followed.columns().keys == late.columns().keys
    assert "speed/step_p95_s" in late.columns().keys
    for key in late.columns().keys:
        ours, theirs = followed.columns().whole(key), late.columns().whole(key)
        for one, other in zip(ours[:3], theirs[:3], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12)
    assert followed.marks == late.marks
    assert [words.values for words in followed.problems] == [words.values for words in late.problems]
    assert problems(late) == ["problem.clock"]
