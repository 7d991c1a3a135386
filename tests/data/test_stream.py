"""Ready batches of the user's own: one size reaches the compiler, and what does not fit is counted or named."""

from __future__ import annotations

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from paceline.base.errors import BatchSizeError, DataError
from paceline.data.source import BatchStream
from paceline.data.stream import stream_batches


def sized(*sizes: int) -> list[dict[str, np.ndarray]]:
    """Batches of the given sizes whose ids count on from 0."""
    bounds = itertools.pairwise(itertools.accumulate(sizes, initial=0))
    return [{"id": np.arange(start, stop)} for start, stop in bounds]


def test_a_smaller_last_batch_is_padded_to_one_size():
    """diffrax#111: 7 of 128 and one of 107 give 8 batches of 128, the last with 107 valid rows."""
    stream = BatchStream(sized(*[128] * 7, 107))
    given = list(stream_batches(stream, devices=8, remainder="pad", epochs=1))
    assert {len(each.data["id"]) for each in given} == {128}
    assert [each.rows for each in given] == [128] * 7 + [107]
    assert given[-1].mask().sum() == 107
    assert (stream.count.rows, stream.count.padding_rows) == (7 * 128 + 107, 21)


def test_a_smaller_batch_is_dropped_and_counted():
    """The same, dropped: 7 batches, 107 rows and 1 batch counted."""
    stream = BatchStream(sized(*[128] * 7, 107))
    assert len(list(stream_batches(stream, devices=8, epochs=1))) == 7
    assert (stream.count.dropped_rows, stream.count.dropped_batches, stream.count.rows) == (107, 1, 896)


def test_a_smaller_batch_is_refused_when_asked():
    """Both sizes are named."""
    with pytest.raises(BatchSizeError) as caught:
        list(stream_batches(BatchStream(sized(8, 8, 5)), devices=4, remainder="refuse", epochs=1))
    assert "5 rows" in caught.value.what and "8" in caught.value.what


@pytest.mark.parametrize("remainder", ["drop", "pad", "refuse"])
def test_a_larger_batch_is_always_refused(remainder):
    """A second size would compile again: 12 after 8 is named."""
    given = stream_batches(BatchStream(sized(8, 12)), devices=4, remainder=remainder)
    assert next(given).rows == 8
    with pytest.raises(BatchSizeError, match=r"12 rows .* 8"):
        next(given)


def test_the_first_batch_must_split_unless_it_is_padded():
    """19 rows on 4 devices: named with 16 and 20; with padding 20, of which 19 valid."""
    with pytest.raises(BatchSizeError, match="'id' has 19 rows") as caught:
        next(stream_batches(BatchStream(sized(19)), devices=4))
    assert "16 or 20" in caught.value.fix
    first = next(stream_batches(BatchStream(sized(19)), devices=4, remainder="pad"))
    assert (len(first.data["id"]), first.rows) == (20, 19)


def test_a_list_of_batches_starts_again_each_epoch():
    """2 batches, 5 steps: epochs 0 0 1 1 2, positions 0 4 0 4 0."""
    given = list(stream_batches(BatchStream(sized(4, 4)), devices=2, steps=5))
    assert [(each.epoch, each.position) for each in given] == [(0, 0), (0, 4), (1, 0), (1, 4), (2, 0)]
    assert all(each.indices is None for each in given)


def test_a_generator_ends_when_it_runs_dry():
    """3 batches for 10 steps: iteration ends after 3, and the loop can report it."""
    given = list(stream_batches(BatchStream(iter(sized(4, 4, 4))), devices=2, steps=10))
    assert len(given) == 3


def test_an_epoch_that_gives_only_dropped_batches_ends_the_stream():
    """Otherwise a loader that shrank would be read for ever without a step."""

    class Shrinks:
        passes = 0

        def __iter__(self):
            self.passes += 1
            return iter(sized(8) if self.passes == 1 else sized(4))

    assert len(list(stream_batches(BatchStream(Shrinks()), devices=2))) == 1


def test_no_batch_is_taken_beyond_the_steps():
    """A generator can go on elsewhere: after 2 steps its third batch is still there."""
    generator = iter(sized(4, 4, 4))
    assert len(list(stream_batches(BatchStream(generator), devices=2, steps=2))) == 2
    assert next(generator)["id"].tolist() == [8, 9, 10, 11]
    assert list(stream_batches(BatchStream(generator), devices=2, steps=0)) == []


def test_an_empty_stream_is_refused():
    """A generator that was used up before gives no first batch."""
    with pytest.raises(DataError, match="empty") as caught:
        next(stream_batches(BatchStream(iter([])), devices=1))
    assert "generator" in caught.value.fix


@pytest.mark.parametrize(
    ("later", "words"),
    [
        ({"x": np.ones((4, 3), np.float32)}, r"'x'.*float32\[3\].*float32\[2\]"),
        ({"x": np.ones((4, 2))}, r"'x'.*float64\[2\].*float32\[2\]"),
        ({"y": np.ones((4, 2), np.float32)}, r"\['y'\].*\['x'\]"),
    ],
)
def test_a_batch_of_another_shape_type_or_key_is_named(later, words):
    """Each would compile the step again in silence."""
    stream = BatchStream([{"x": np.ones((4, 2), np.float32)}, later])
    with pytest.raises(DataError, match=words):
        list(stream_batches(stream, devices=2, epochs=1))


def test_batches_of_lists_and_device_arrays_become_host_arrays():
    """A PyTorch loader gives ``[inputs, labels]``; labels may be a list of numbers."""
    (given,) = stream_batches(BatchStream([[jnp.ones((4, 2)), [0, 1, 1, 0]]]), devices=2, epochs=1)
    inputs, labels = given.data
    assert type(inputs) is np.ndarray and labels.tolist() == [0, 1, 1, 0]
