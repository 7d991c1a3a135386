"""Marks: which are kept, and what keeping them costs."""

from __future__ import annotations

from itertools import pairwise

import pytest

from paceline.dashboard.follow import marks as marks_module
from paceline.dashboard.follow.marks import Mark, Marks


def mark(kind, step, *, process=0, text=None) -> Mark:
    return Mark(kind, step, float(step), process, text)


def of(marks: Marks, kind: str) -> list[int]:
    return [found.step for found in marks.all if found.kind == kind]


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(marks_module, "MOST_OFTEN", 8)
    monkeypatch.setattr(marks_module, "MOST_RARE", 4)


def test_thousands_of_equal_audits_hide_nothing_else(few):
    marks = Marks()
    for step in range(1000):
        marks.add(mark("audit", step), main=True)
    for kind in ("divergence", "restart", "end"):
        marks.add(mark(kind, 1000), main=True)
    assert [found.kind for found in marks.all[-3:]] == ["divergence", "restart", "end"]
    assert len(of(marks, "audit")) <= 9
    assert marks.left_out == {"audit": 1000 - len(of(marks, "audit"))}


@pytest.mark.parametrize("number", range(1, 40))
def test_thinned_marks_are_evenly_spaced_with_the_first_and_the_newest(few, number):
    """Every second, fourth ...: all gaps are equal but the last."""
    marks = Marks()
    for step in range(number):
        marks.add(mark("audit", step), main=True)
    found = of(marks, "audit")
    gaps = {after - before for before, after in pairwise(found[:-1])}
    assert (found[0], found[-1], len(gaps) <= 1) == (0, number - 1, True)
    assert sum(marks.left_out.values()) == number - len(found)


def test_marks_come_in_the_order_in_which_they_were_read():
    marks = Marks()
    for kind, step in (("start", 0), ("audit", 5), ("nonfinite", 7), ("restart", 3), ("audit", 4)):
        marks.add(mark(kind, step), main=True)
    assert [(found.kind, found.step) for found in marks.all] == [
        ("start", 0), ("audit", 5), ("nonfinite", 7), ("restart", 3), ("audit", 4)
    ]  # fmt: skip


def test_numbers_that_are_computed_again_lose_their_marks_and_no_others(few):
    """Also beyond the room for marks of a kind: those left out of what is gone are not counted."""
    marks = Marks()
    for step in range(10):
        marks.add(mark("nonfinite", step), main=True)
        marks.add(mark("audit", step), main=True)
    before = of(marks, "audit")
    marks.drop_nonfinite_from(4)
    assert max(of(marks, "nonfinite")) < 4
    marks.drop_nonfinite_from(0)
    assert (of(marks, "nonfinite"), of(marks, "audit"), "nonfinite" in marks.left_out) == ([], before, False)


def test_a_start_looks_at_no_mark_of_another_kind(monkeypatch):
    """2,000 starts after thousands of audits: the steps of other marks are not asked for, and the list is not made."""
    marks = Marks()
    for step in range(3000):
        marks.add(mark("audit", step), main=True)
    asked: list[int] = []
    monkeypatch.setattr(marks_module, "_step", lambda entry: asked.append(0) or entry.mark.step)
    monkeypatch.setattr(marks_module, "_place", lambda entry: asked.append(0) or entry.place)
    for step in range(2000):
        marks.add(mark("nonfinite", step), main=True)
        marks.drop_nonfinite_from(step)
    assert len(asked) < 10 * 2000


def test_a_divergence_that_all_processes_tell_is_one_mark_until_its_file_is_replaced():
    marks = Marks()
    for process in (0, 1):
        marks.add(mark("divergence", 5, process=process, text="odd"), main=process == 0)
    assert [found.process for found in marks.all] == [0]
    marks.drop_process(0)
    assert marks.all == []
    marks.add(mark("divergence", 5, process=1, text="odd"), main=False)
    assert [found.process for found in marks.all] == [1]
