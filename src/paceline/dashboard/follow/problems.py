"""What is wrong with one events file, in words.

Not here: what is wrong with the run as a whole (`follow.run`), the sentences (`follow.words`).
"""

from __future__ import annotations

from collections.abc import Iterator

from paceline.dashboard.follow import kept
from paceline.dashboard.follow.feed import ClockJumps, ProcessFeed
from paceline.dashboard.follow.words import Words, say


def feed_problems(feed: ProcessFeed, *, unreadable: str | None) -> Iterator[Words]:
    """Of one process.

    Args:
      unreadable: why its file cannot be read now; None if it can.
    """
    process = feed.process
    if feed.skipped:
        yield say("problem.lines_damaged", count=feed.skipped, process=process)
    if feed.clock_jumps is not None:
        yield _clock(process, feed.clock_jumps)
    if feed.tail.instead is not None:
        yield say(f"problem.events_{feed.tail.instead}", process=process, file=feed.tail.path.name)
    elif feed.gone:
        yield say("problem.file_gone", process=process)
    if unreadable is not None:
        yield say("problem.file_unreadable", process=process, reason=unreadable)
    if feed.keys_left_out:
        yield say("problem.keys_left_out", count=feed.keys_left_out, most=kept.MOST_KEYS, process=process)


def _clock(process: int, jumps: ClockJumps) -> Words:
    times, most_s, step = jumps
    if times == 1:
        return say("problem.clock", process=process, step=step, seconds=most_s)
    return say("problem.clock_often", process=process, count=times, step=step, seconds=most_s)
