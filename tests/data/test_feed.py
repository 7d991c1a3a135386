"""The background feed: order, bound, errors, and a thread that always ends. Events, never sleeps."""

from __future__ import annotations

import contextlib
import gc
import signal
import threading
import weakref

import pytest

from paceline.base.errors import OptionError
from paceline.data.feed import THREAD_NAME, Feed

PATIENCE_S = 10.0


def feed_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == THREAD_NAME]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    """Every test ends with as many feed threads as it began with."""
    before = set(feed_threads())
    yield
    left = set(feed_threads()) - before
    if left:  # a collection takes a second among everything that a worker holds: only where a feed was abandoned
        gc.collect()
    for thread in left:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def same(item):
    return item


def test_every_item_comes_placed_and_in_order():
    """1,000 items through each depth: place(0), place(1), ..."""
    for depth in (1, 2, 7):
        assert list(Feed(range(1_000), lambda item: item * 2, depth=depth)) == list(range(0, 2_000, 2))


def test_an_exhausted_feed_stays_exhausted_and_its_thread_has_ended():
    """Again `next`: StopIteration, not a wait."""
    feed = Feed([1], same)
    assert list(feed) == [1]
    assert not feed._thread.is_alive()
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(feed)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_no_more_than_depth_items_are_made_ahead(depth):
    """With none taken, exactly `depth` are placed; each one taken lets one more be made."""
    placed: list[int] = []
    progress = threading.Condition()

    def place(item):
        with progress:
            placed.append(item)
            progress.notify_all()
        return item

    def made(count: int) -> bool:
        with progress:
            return progress.wait_for(lambda: len(placed) >= count, PATIENCE_S)

    with Feed(range(100), place, depth=depth) as feed:
        assert made(depth)
        for taken in range(1, 6):
            assert len(placed) <= depth + taken - 1
            next(feed)
            assert made(depth + taken)
        assert len(placed) == depth + 5


def test_the_bound_holds_when_the_thread_has_time_to_break_it():
    """The source is not even asked for item `depth` + 1 before one is taken."""
    asked: list[int] = []
    first_two = threading.Event()

    def source():
        for item in range(10):
            asked.append(item)
            yield item

    def place(item):
        if item == 1:
            first_two.set()
        return item

    with Feed(source(), place, depth=2) as feed:
        assert first_two.wait(PATIENCE_S)
        # The thread can only be between place(1) and its wait for a credit, which nobody returns.
        feed._thread.join(0.05)
        assert asked == [0, 1]


def test_queued_counts_the_items_that_wait():
    """3 items, room for 4: once the thread has ended 3 wait, then 2, 1, 0; the end itself is not counted."""
    feed = Feed(range(3), same, depth=4)
    feed._thread.join(PATIENCE_S)
    assert feed.queued == 3
    assert [feed.queued for _ in feed] == [2, 1, 0]


class Broken(Exception):
    pass


def test_an_error_of_the_source_surfaces_after_the_items_before_it():
    """Same type, same object, with the line of the user's code in its traceback; then the feed has ended."""

    def source():
        yield 1
        raise Broken("row 7")

    feed = Feed(source(), same)
    assert next(feed) == 1
    with pytest.raises(Broken, match="row 7") as caught:
        next(feed)
    assert "source" in [entry.name for entry in caught.traceback]
    assert list(feed) == []


def test_an_error_of_place_surfaces_and_closes_the_source():
    """The generator's `finally` runs."""
    closed = threading.Event()

    def source():
        try:
            yield from range(10)
        finally:
            closed.set()

    def place(item):
        raise Broken(item)

    with pytest.raises(Broken) as caught:
        next(Feed(source(), place))
    assert "place" in [entry.name for entry in caught.traceback]
    assert closed.is_set()


def test_an_error_is_freed_once_it_was_raised():
    """A batch in the frames of a traceback must not outlive the handler: no reference cycle."""

    class Payload:
        pass

    seen: list[weakref.ref] = []

    def place(item):
        payload = Payload()
        seen.append(weakref.ref(payload))
        raise Broken

    feed = Feed([1], place)
    gc.disable()
    try:
        with contextlib.suppress(Broken):
            next(feed)
        assert seen[0]() is None
    finally:
        gc.enable()


def test_stop_iteration_in_place_is_an_error_and_not_the_end():
    """A loop that ended quietly would pass for a finished epoch."""

    def place(item):
        return next(iter([]))

    with pytest.raises(RuntimeError, match="StopIteration"):
        list(Feed([1, 2], place))


def test_stop_iteration_inside_a_generator_is_an_error():
    """As Python itself has it since PEP 479."""

    def source():
        yield next(iter([]))

    with pytest.raises(RuntimeError, match="StopIteration"):
        list(Feed(source(), same))


def test_what_cannot_be_iterated_fails_at_once():
    """In the caller's thread, and without a thread being left."""
    with pytest.raises(TypeError, match="not iterable"):
        Feed(3, same)  # pyright: ignore[reportArgumentType]: the mistake under test


def endless(closed: threading.Event):
    try:
        while True:
            yield 0
    finally:
        closed.set()


def test_leaving_the_block_ends_the_thread_and_closes_the_source():
    """On an exception of the loop too."""
    closed = threading.Event()
    with pytest.raises(Broken), Feed(endless(closed), same) as feed:
        next(feed)
        raise Broken
    assert closed.is_set()
    assert not feed._thread.is_alive()
    assert list(feed) == [] and feed.queued == 0


def test_closing_twice_is_harmless():
    """Also after exhaustion."""
    feed = Feed([1], same)
    list(feed)
    feed.close()
    feed.close()


def test_closing_frees_the_items_that_wait():
    """Batches in device memory must not wait for the garbage collector."""

    class Item:
        pass

    made: list[weakref.ref] = []
    both = threading.Event()

    def place(index):
        item = Item()
        made.append(weakref.ref(item))
        if len(made) == 2:
            both.set()
        return item

    feed = Feed(range(9), place, depth=2)
    assert both.wait(PATIENCE_S)
    feed.close()
    assert [reference() for reference in made] == [None, None]


def test_an_abandoned_feed_ends_its_thread():
    """Collected unfinished: no close, no with. The thread holds no reference to the feed."""
    closed = threading.Event()
    feed = Feed(endless(closed), same)
    next(feed)
    thread, reference = feed._thread, weakref.ref(feed)
    del feed
    gc.collect()
    assert reference() is None
    thread.join(PATIENCE_S)
    assert not thread.is_alive() and closed.is_set()


def test_an_abandoned_feed_in_a_reference_cycle_ends_its_thread():
    """Then the garbage collector finds it, in whatever thread that runs."""
    feed = Feed(endless(threading.Event()), same)
    feed.itself = feed  # pyright: ignore[reportAttributeAccessIssue]: makes the cycle
    thread = feed._thread
    del feed
    gc.collect()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_close_does_not_hang_on_a_source_that_is_stuck():
    """It gives up after its timeout; the thread ends when the source returns."""
    stuck, release = threading.Event(), threading.Event()

    def source():
        stuck.set()
        release.wait(PATIENCE_S)
        yield 1

    feed = Feed(source(), same)
    assert stuck.wait(PATIENCE_S)
    feed.close(timeout_s=0.01)
    assert feed._thread.is_alive()
    release.set()
    feed._thread.join(PATIENCE_S)
    assert not feed._thread.is_alive()


def test_closing_wakes_a_reader_in_another_thread():
    """It sees the end while the source is still stuck, and does not wait for it."""
    stuck, release, ended = threading.Event(), threading.Event(), threading.Event()

    def source():
        stuck.set()
        release.wait()
        yield 1

    feed = Feed(source(), same)

    def read():
        list(feed)
        ended.set()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        assert stuck.wait(PATIENCE_S)
        feed.close(timeout_s=0.01)
        assert ended.wait(PATIENCE_S)
    finally:
        release.set()
        reader.join(PATIENCE_S)


def test_the_thread_keeps_no_item_that_was_handed_out():
    """While it waits for the source, the batch before is the reader's alone: `depth` bounds the memory."""

    class Item:
        pass

    asked_again, release = threading.Event(), threading.Event()

    def source():
        yield 0
        asked_again.set()
        release.wait(PATIENCE_S)

    with Feed(source(), lambda _: Item()) as feed:
        item = weakref.ref(next(feed))
        assert asked_again.wait(PATIENCE_S)
        assert item() is None
        release.set()


def test_ctrl_c_interrupts_a_waiting_next():
    """The source gives nothing until SIGINT was handled in the main thread: `next` raises KeyboardInterrupt."""
    asked, handled = threading.Event(), threading.Event()
    main = threading.get_ident()

    def source():
        asked.wait(PATIENCE_S)
        # Again if need be: a signal that lands just before the waiting system call does not interrupt it.
        while not handled.is_set():
            signal.pthread_kill(main, signal.SIGINT)
            handled.wait(0.1)
        yield 1

    def interrupted(number, frame):
        handled.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupted)
    feed = Feed(source(), same)
    try:
        with pytest.raises(KeyboardInterrupt):
            asked.set()
            next(feed)
    finally:
        handled.set()
        feed.close()
        signal.signal(signal.SIGINT, before)


def test_a_depth_without_room_is_refused():
    """0 names the option and the least that works."""
    with pytest.raises(OptionError) as caught:
        Feed([1], same, depth=0)
    assert "0" in caught.value.what and "1 or more" in caught.value.fix
    assert not feed_threads()
