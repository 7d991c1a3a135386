"""Ready batches of several processes: found unequal before a batch is handed out, whole otherwise."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from paceline.base.errors import DataError
from paceline.data.joined import StreamPeers, digest
from paceline.data.share import Share
from paceline.data.source import stream
from paceline.data.stream import stream_batches

PATIENCE_S = 20.0
HALVES = [Share(4, (0, 1)), Share(4, (2, 3))]


class Exchange:
    """The texts of several threads, each of which plays a process."""

    def __init__(self, count):
        self._barrier = threading.Barrier(count, timeout=PATIENCE_S)
        self._said = [""] * count

    def of(self, index):
        def exchange(text):
            self._said[index] = text
            self._barrier.wait()
            heard = list(self._said)
            self._barrier.wait()
            return heard

        return exchange


def played(streams, shares=HALVES, **options):
    """What each of several processes gets of its stream: batches, or the error that it ends with."""
    exchange = Exchange(len(streams))

    def play(index):
        peers = StreamPeers(exchange.of(index), shares, index=index)
        given = stream(streams[index])
        try:
            return list(stream_batches(given, devices=2, epochs=1, peers=peers, **options))
        except DataError as error:
            return error

    with ThreadPoolExecutor(len(streams)) as pool:
        return list(pool.map(play, range(len(streams))))


def batch(first, size=4):
    return {"x": np.arange(first, first + size, dtype=np.float32)}


def refused(streams, **options):
    """The one error that all end with, as text."""
    results = played(streams, **options)
    assert all(isinstance(result, DataError) for result in results), results
    assert len({str(result) for result in results}) == 1
    return str(results[0])


def test_each_gives_its_part_of_a_global_batch():
    """4 rows here and 4 there: batches of 8 in both, of which each holds its own 4 and knows its places."""
    first, second = played([[batch(0), batch(8)], [batch(4), batch(12)]])
    for number in range(2):
        one, other = first[number], second[number]
        assert (one.rows, one.size, one.valid) == (other.rows, other.size, other.valid) == (8, 8, None)
        assert one.position == other.position == 8 * number
        assert one.data["x"].tolist() == list(range(8 * number, 8 * number + 4))
        assert [other.place_of(row) for row in range(4)] == [4, 5, 6, 7]


def test_interleaved_devices_keep_their_places():
    """Process 0 has devices 0 and 2 of 4: its rows are places 0, 1 and 4, 5; padding is masked there."""
    shares = [Share(4, (0, 2)), Share(4, (1, 3))]
    one, other = played([[batch(0), batch(8, 3)], [batch(4), batch(12, 4)]], shares, remainder="pad")
    assert one[0].share.rows(8).tolist() == [0, 1, 4, 5]
    assert one[1].mask().tolist() == other[1].mask().tolist() == [True] * 5 + [False] + [True] * 2
    assert one[1].rows == 7


def test_three_batches_here_and_two_there_are_refused_before_the_third():
    """Both processes say which one ended, after how many; nobody waits."""
    text = refused([[batch(0), batch(8), batch(16)], [batch(4), batch(12)]])
    assert "the data of process 1 ended after 2 batches, but process 0 has more" in text
    assert "paceline.rows" in text


def test_four_rows_here_and_two_there_are_refused():
    """In the first batch; in a later one too, unless it may be padded."""
    text = refused([[batch(0)], [batch(4, 2)]])
    assert "batch 0 has different rows: 4 in process 0, 2 in process 1" in text
    text = refused([[batch(0), batch(8)], [batch(4), batch(12, 2)]])
    assert "batch 1 has different rows: 4 in process 0, 2 in process 1" in text and "--remainder pad" in text
    assert "batch 0" in refused([[batch(0)], [batch(4, 2)]], remainder="pad")


def test_the_same_rows_everywhere_are_refused():
    """Each would be trained on twice: the two processes and the batch are named, and how to divide the data."""
    text = refused([[batch(0), batch(8)], [batch(4), batch(8)]])
    assert "processes 0 and 1 were given the same rows in batch 1" in text
    assert "jax.process_index()" in text


def test_equal_constant_batches_say_nothing():
    """Zeros in both processes may be padding or a warm-up: accepted."""
    zeros = {"x": np.zeros(4, np.float32)}
    first, _ = played([[zeros], [zeros]])
    assert first[0].rows == 8


def test_a_digest_tells_values_shapes_names_and_types_apart():
    """Each change alone gives another text; a copy gives the same; constant data none."""
    base = {"x": np.arange(6, dtype=np.float32)}
    others = [
        {"x": np.arange(6, dtype=np.float32)[::-1]},
        {"y": np.arange(6, dtype=np.float32)},
        {"x": np.arange(6, dtype=np.int32)},
        {"x": np.arange(6, dtype=np.float32).reshape(2, 3)},
    ]
    found = {digest(tree) for tree in (base, *others)}
    assert len(found) == 5 and digest({"x": base["x"].copy()}) in found
    assert digest({"x": np.ones(6)}) == ""


def test_a_resumed_stream_leaves_out_global_batches():
    """Two batches skipped: the third of each process comes first, at the rows that passed in both."""
    streams = [[batch(8 * number) for number in range(3)], [batch(8 * number + 4) for number in range(3)]]
    first, second = played(streams, skip=2)
    assert [item.position for item in first] == [item.position for item in second] == [16]
    assert first[0].data["x"].tolist() == [16, 17, 18, 19]


def test_processes_with_different_numbers_of_devices_are_refused_at_once():
    """Ready batches cannot be shared out: 1 and 3 devices are named, and data that can."""
    with pytest.raises(DataError, match=r"processes with 1, 3 devices(.|\n)*paceline\.rows"):
        StreamPeers(lambda text: [text, text], [Share(4, (0,)), Share(4, (1, 2, 3))], index=0)
