"""The times that a feed tells: of making and placing an item, of the wait for it, of what was idle. By pencil."""

from __future__ import annotations

import threading
from queue import Empty
from types import SimpleNamespace

import pytest

from paceline.data import feed as feed_module
from paceline.data.feed import Feed


def same(item):
    return item


def test_the_wait_is_measured(monkeypatch):
    """By a clock that reads 0, 1, 5, 8 and then 20, 20.5 s: waits of 1, 3 and, for the end, 0.5 s."""
    ticks = iter([0.0, 1.0, 5.0, 8.0, 20.0, 20.5])
    reader = threading.get_ident()
    clock = SimpleNamespace(perf_counter=lambda: next(ticks) if threading.get_ident() == reader else 0.0)
    monkeypatch.setattr(feed_module, "time", clock)
    feed = Feed([1, 2], same)
    waits = [feed.wait_s for _ in feed]
    assert waits == [1.0, 3.0]
    assert (feed.wait_s, feed.total_wait_s) == (0.5, 4.5)


class Clock:
    """A clock that only the source and `place` move."""

    def __init__(self):
        self.now_s = 0.0

    def perf_counter(self):
        return self.now_s


def test_each_item_tells_when_it_was_begun_and_what_it_took(monkeypatch):
    """Reading takes 3 s and placing 2 s: begun at 0 and 5 s; what the reader does between is in neither."""
    clock = Clock()
    monkeypatch.setattr(feed_module, "time", clock)

    def source():
        for item in range(2):
            clock.now_s += 3.0
            yield item

    def place(item):
        clock.now_s += 2.0
        return item

    with Feed(source(), place, depth=2) as feed:
        seen = list(feed.watched(lambda: False))
    assert [(one.item, one.begun_s, one.make_s, one.place_s) for one in seen] == [
        (0, 0.0, 3.0, 2.0),
        (1, 5.0, 3.0, 2.0),
    ]


def test_what_is_begun_is_told_and_what_was_none_is_taken_back(monkeypatch):
    """Two items of 3 s each: begun at 0, 3 and 6 s, where the third turns out to be the end. So as many are counted as
    there were; an item that is begun and fails stays counted, since the run ends with it."""
    clock = Clock()
    monkeypatch.setattr(feed_module, "time", clock)
    told = []

    def source():
        for item in range(2):
            clock.now_s += 3.0
            yield item

    assert list(Feed(source(), same, begun=lambda at_s, change: told.append((at_s, change)))) == [0, 1]
    assert told == [(0.0, 1), (3.0, 1), (6.0, 1), (6.0, -1)]


def test_an_item_can_be_taken_with_its_times_and_unwatched():
    """`take` is `next` with times; at the end it raises what `next` raises."""
    feed = Feed([7], same)
    one = feed.take()
    assert (one.item, one.idle_s) == (7, 0.0) and one.make_s >= 0 and one.place_s >= 0
    with pytest.raises(StopIteration):
        feed.take()


class _Waited:
    """A queue on a clock that only waiting moves: its one entry arrives at a time, and the devices end at another."""

    def __init__(self, *, arrives_s, done_s):
        self.now_s, self.looks = 0.0, 0
        self._arrives_s, self._done_s = arrives_s, done_s

    def perf_counter(self):
        return self.now_s

    def busy(self):
        self.looks += 1
        return self.now_s < self._done_s

    def get_nowait(self):
        return self.get(timeout=0.0)

    def get(self, timeout=1e9):
        self.now_s = min(self.now_s + timeout, max(self.now_s, self._arrives_s))
        if self.now_s < self._arrives_s:
            raise Empty
        return (0, "entry")


@pytest.mark.parametrize(
    ("arrives_s", "done_s", "idle_s", "looks"),
    [(0.100, 0.092, 0.008, 20), (0.100, 0.0, 0.100, 1), (0.100, 0.5, 0.0, 21), (0.0, 0.0, 0.0, 0),
     (0.103, 0.102, 0.001, 22)],
    ids=["ends during the wait", "had ended before", "still busy", "no wait", "both between two looks"],
)  # fmt: skip
def test_only_the_part_of_a_wait_in_which_nothing_ran_is_idle(monkeypatch, arrives_s, done_s, idle_s, looks):
    """Looked at each 5 ms, so to 2.5 ms: a batch after 100 ms, devices that end after 92, leaves 8 ms, not 100."""
    waited = _Waited(arrives_s=arrives_s, done_s=done_s)
    monkeypatch.setattr(feed_module, "time", waited)
    channel = feed_module._Channel(1)
    channel.items = waited
    entry, found_s = channel.next(waited.busy, each_s=0.005)
    assert entry == (0, "entry") and waited.now_s == pytest.approx(arrives_s)
    assert found_s == pytest.approx(idle_s, abs=0.0025)
    assert waited.looks == pytest.approx(looks, abs=1)


def test_a_watched_feed_gives_every_item_and_then_what_its_source_raised():
    """As `next` does: 0, 1, 2 in order, each with its seconds, and the error behind them; the end without one."""

    def source():
        yield from range(3)
        raise ZeroDivisionError("row 3")

    seen = []
    with Feed(source(), same) as feed, pytest.raises(ZeroDivisionError, match="row 3"):
        for taken in feed.watched(lambda: True):
            seen.append((taken.item, taken.idle_s))
    assert seen == [(0, 0.0), (1, 0.0), (2, 0.0)]
    with Feed(range(3), same) as feed:
        assert [taken.item for taken in feed.watched(lambda: False)] == [0, 1, 2]
