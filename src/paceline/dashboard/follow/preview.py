"""A first picture of a long run, before it is read.

Owns: which pieces of the file are read for it.
Not here: reading it in full (`follow.feed`), when the one takes the place of the other (`follow.run`).
Invariant: costs some milliseconds, however long the file is; its rows are rows of the run, but far from all: extremes
may be missing.
"""

from __future__ import annotations

from paceline.dashboard.follow.blocks import BlockStore
from paceline.dashboard.follow.feed import ProcessFeed
from paceline.dashboard.follow.marks import Marks
from paceline.dashboard.follow.tail import Tail
from paceline.telemetry.bulk import decode_bulk

PIECES = 64
PIECE_BYTES = 6 * 1024


def read_pieces(tail: Tail, *, process: int, store: BlockStore) -> ProcessFeed:
    """What evenly spaced pieces of the file tell, its begin and its end among them. Never raises."""
    feed = ProcessFeed(tail, process=process, store=store, marks=Marks(), number=lambda: 0)
    last = max(0, tail.size_bytes - PIECE_BYTES)
    lines: list[bytes] = []
    read = 0
    for place in range(PIECES):
        offset = max(read, last * place // (PIECES - 1))  # pieces of a short file would overlap
        content = tail.piece(offset, PIECE_BYTES)
        begin = content.find(b"\n") + 1 if offset else 0
        end = content.rfind(b"\n") + 1
        if end > begin:
            lines.append(content[begin:end])
            read = offset + end - 1  # the newline, so that the next piece begins with a whole line
    feed.take(decode_bulk(b"".join(lines)).events)
    return feed
