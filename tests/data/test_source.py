"""Reading rows: one contract for every source, then what is special about each."""

from __future__ import annotations

import re

import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from paceline.base.errors import DataError
from paceline.data.source import ArraySource, BatchStream, MapSource, Source, as_source, rows, stream

X = np.arange(20 * 3, dtype=np.float32).reshape(20, 3)
Y = np.arange(20, dtype=np.int32) % 7


class HostTensor:
    """Stands for a torch tensor: not numpy, but `np.asarray` takes it."""

    def __init__(self, values) -> None:
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype=dtype)


class TensorDataset:
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index):
        return {"x": HostTensor(X[index]), "y": Y[index]}


class CountingSource:
    """A source of the user's own."""

    def __len__(self) -> int:
        return 20

    def read(self, indices):
        return {"x": X[indices], "y": Y[indices]}


def memory_mapped(folder):
    np.save(folder / "x.npy", X)
    return np.load(folder / "x.npy", mmap_mode="r")


SOURCES = {
    "numpy": lambda folder: rows({"x": X, "y": Y}),
    "jax": lambda folder: rows({"x": jnp.asarray(X), "y": jnp.asarray(Y)}),
    "memory-mapped": lambda folder: rows({"x": memory_mapped(folder), "y": Y}),
    "map-style": lambda folder: MapSource(TensorDataset()),
    "list": lambda folder: MapSource([{"x": X[i], "y": Y[i]} for i in range(20)]),
    "own": lambda folder: CountingSource(),
}


@pytest.fixture(params=SOURCES)
def source(request, tmp_path):
    return SOURCES[request.param](tmp_path)


@pytest.mark.parametrize("indices", [[0], [19], [3, 4, 5, 6], [6, 5, 4], [7, 7, 2], list(range(20))])
def test_every_source_gives_the_rows_asked_for_in_order(source, indices):
    """Values, types and order of numpy indexing; single, consecutive, reversed, repeated, all."""
    assert isinstance(source, Source)
    assert len(source) == 20
    found = source.read(np.array(indices, dtype=np.int64))
    np.testing.assert_array_equal(found["x"], X[indices])
    np.testing.assert_array_equal(found["y"], Y[indices])
    assert (found["x"].dtype, found["y"].dtype) == (np.float32, np.int32)
    assert type(found["x"]) in (np.ndarray, np.memmap)


def test_consecutive_rows_are_read_without_a_copy():
    """A slice shares memory with the stored array; other orders do not."""
    source = rows({"x": X})
    assert np.shares_memory(source.read(np.arange(4, 9))["x"], X)
    assert not np.shares_memory(source.read(np.array([4, 6, 5]))["x"], X)


def test_a_memory_mapped_array_stays_on_disk(tmp_path):
    """The source keeps the map itself: rows are paged in when they are read."""
    source = rows(memory_mapped(tmp_path))
    assert isinstance(source.read(np.arange(3)), np.memmap)


@pytest.mark.parametrize("indices", [[-1], [20], [18, 19, 20]])
def test_an_index_outside_the_rows_is_never_clipped_or_wrapped(indices):
    """numpy would wrap -1 and clip a slice in silence."""
    for source in (rows(X), MapSource(list(X))):
        with pytest.raises(AssertionError):
            source.read(np.array(indices))


def test_rows_of_different_lengths_are_refused_by_name():
    """Both leaves and both counts."""
    with pytest.raises(DataError) as caught:
        rows({"image": X, "label": Y[:-1]})
    assert all(word in caught.value.what for word in ("'image'", "20", "'label'", "19"))


@pytest.mark.parametrize(
    "tree", [{}, {"x": np.zeros((0, 3))}, {"x": 1.5}, {"x": np.array(["a"])}, {"x": [[1], [2, 3]]}]
)
def test_arrays_that_are_no_rows_are_refused(tree):
    """Empty, no rows, scalar, text, ragged."""
    with pytest.raises(DataError):
        rows(tree)


def test_numbers_tuples_and_lists_in_a_row_are_stacked():
    """A tuple is structure, a list of numbers one array: ``([1, 2], 3)`` gives ``[b, 2]`` and ``[b]``."""
    tokens, labels = MapSource([([1, 2], 3), ([4, 5], 6)]).read(np.array([1, 0]))
    np.testing.assert_array_equal(tokens, [[4, 5], [1, 2]])
    np.testing.assert_array_equal(labels, [6, 3])


def test_a_row_of_another_shape_is_named_with_its_index():
    """Leaf, both indices, both shapes."""
    dataset = [{"tokens": np.zeros(4)}, {"tokens": np.zeros(4)}, {"tokens": np.zeros(5)}]
    with pytest.raises(DataError) as caught:
        MapSource(dataset).read(np.array([1, 2]))
    assert all(word in caught.value.what for word in ("'tokens'", "[5] in row 2", "[4] in row 1"))


def test_a_row_of_another_type_is_refused():
    """Promotion would compile the step again for the batches that hold such a row."""
    with pytest.raises(DataError, match=r"float64\[\] in row 1.*int64\[\] in row 0"):
        MapSource([{"y": 1}, {"y": 1.5}]).read(np.arange(2))


def test_a_row_with_other_keys_is_refused():
    """Both sets of leaves are listed."""
    with pytest.raises(DataError) as caught:
        MapSource([{"x": 1, "y": 2}, {"x": 1}]).read(np.arange(2))
    assert "['x']" in caught.value.what and "['x', 'y']" in caught.value.what


def test_text_in_a_row_is_refused_by_name():
    """Leaf and row are named before numpy makes a string array of them."""
    with pytest.raises(DataError, match=r"row 3 leaf 'caption'"):
        MapSource([{"caption": "a cat"}] * 4).read(np.array([3]))


def test_a_tensor_that_does_not_leave_its_device_is_named():
    """What `np.asarray` raises becomes a DataError with the leaf."""

    class DeviceTensor:
        def __array__(self, dtype=None, copy=None):
            raise TypeError("can't convert cuda:0 device type tensor to numpy")

    with pytest.raises(DataError, match=r"'x' is a DeviceTensor.*cuda:0"):
        MapSource([{"x": DeviceTensor()}]).read(np.array([0]))


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (X, ArraySource),
        (jnp.ones((3, 2)), ArraySource),
        ({"x": X}, ArraySource),
        ((X, Y), ArraySource),
        ([1, 2, 3], MapSource),
        ([[1, 2], [3, 4]], MapSource),
        ([], MapSource),
        (TensorDataset(), MapSource),
        (CountingSource(), CountingSource),
        (BatchStream([X]), BatchStream),
        ((batch for batch in [X]), BatchStream),
        (iter([X]), BatchStream),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_the_reader_follows_from_what_was_passed(data, kind):
    """Arrays and trees: rows; len and [i]: map-style; iterables: a stream; readers stay themselves."""
    found = as_source(data)
    assert isinstance(found, kind)
    assert found is data or not isinstance(data, (Source, BatchStream))


def test_an_archive_of_arrays_is_read_like_a_dict(tmp_path):
    """`np.load` of an .npz is a mapping."""
    np.savez(tmp_path / "data.npz", x=X, y=Y)
    source = as_source(np.load(tmp_path / "data.npz"))
    assert isinstance(source, ArraySource) and len(source) == 20


class Frame:
    """Stands for a data frame: len and [], but [] takes a column."""

    columns = ("x",)

    def __len__(self) -> int:
        return 3

    def __getitem__(self, column):
        raise KeyError(column)


@pytest.mark.parametrize("data", [3, None, "path/to/data", b"data", object(), Frame()], ids=lambda v: type(v).__name__)
def test_what_is_no_source_is_refused_with_the_three_that_are(data):
    """The type is named, the fix shows rows(), a data set and an iterator."""
    with pytest.raises(DataError) as caught:
        as_source(data)
    assert type(data).__name__ in caught.value.what
    assert all(word in caught.value.fix for word in ("paceline.rows", "len()", "iterator"))


def test_a_generator_is_known_to_last_one_pass():
    """Lists and loaders start again; iterators do not."""
    assert stream(iter([X])).one_shot
    assert not stream([X]).one_shot


BATCHES = [{"x": X[i : i + 4], "y": Y[i : i + 4]} for i in range(0, 20, 4)]


@pytest.mark.parametrize(
    "data",
    [
        BATCHES,
        [(batch["x"], batch["y"]) for batch in BATCHES],
        [{"inputs": {"x": HostTensor(X)}, "y": jnp.asarray(Y)}],
        [{"x": X[0]}, {"x": X[1]}],
        [{"tokens": [1, 2], "mask": [1, 0]}],
        list(X),
    ],
    ids=["dicts", "tuples", "tensors", "one-leaf", "number-lists", "arrays"],
)
def test_a_list_that_could_be_rows_or_batches_is_refused(data):
    """Both readings would train; the count of items and both ways out are named, and both work."""
    with pytest.raises(DataError, match=f"a list of {len(data)} item.*could be rows or ready batches") as caught:
        as_source(data)
    assert "paceline.stream(data)" in caught.value.fix and "len() and [i]" in caught.value.fix
    assert "tuple" not in caught.value.fix
    assert list(as_source(stream(data))) == data or data[0] is X[0]
    (code,) = re.findall(r"np\.stack\(.*?\]\)", caught.value.fix)
    assert len(as_source(rows(eval(code, {"np": np, "data": data})))) == len(data)


@pytest.mark.parametrize(
    "data",
    [
        [{"x": row, "y": int(y)} for row, y in zip(X, Y, strict=True)],
        [(row, y) for row, y in zip(X, Y, strict=True)],
        [{"image": np.zeros((4, 4)), "boxes": np.zeros((2, 4))}] * 3,
        [{"image": np.zeros((1, 8, 8))}] * 3,
        [{"x": X[0], "note": "text"}] * 3,
    ],
    ids=["number", "numpy-scalar", "leading-dims-differ", "leading-dim-1", "text"],
)
def test_a_list_that_cannot_be_batches_is_read_by_row(data):
    """A scalar leaf, or leading dims that differ, have no batch."""
    source = as_source(data)
    assert isinstance(source, MapSource) and len(source) == len(data)


@pytest.mark.parametrize("data", [[X, Y], [X, X], [X, Y, X]])
def test_a_list_of_two_leaves_is_refused_with_the_tuple(data):
    """``[X, Y]`` would be 2 rows or 2 batches; ``(X, Y)`` is the 20 rows that were meant."""
    with pytest.raises(DataError, match="could be rows or ready batches") as caught:
        as_source(data)
    assert "(X, Y)" in caught.value.fix
    assert len(as_source(tuple(data))) == 20


def test_a_stream_gives_the_batches_as_they_are():
    """Of a list, twice; a stream of a stream is itself."""
    given = stream(BATCHES)
    assert all(a is b for a, b in zip(given, BATCHES, strict=True))
    assert all(a is b for a, b in zip(given, BATCHES, strict=True))
    assert stream(given) is given and as_source(given) is given


@pytest.mark.parametrize("data", [X, {"x": X}, "text", 3, TensorDataset()], ids=lambda v: type(v).__name__)
def test_what_holds_no_batches_is_no_stream(data, monkeypatch):
    """One array would be taken apart by its rows, a dict by its keys; without the type check that tests add."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(DataError, match=type(data).__name__) as caught:
        stream(data)
    assert "paceline.stream([batch, ...])" in caught.value.fix and "paceline.rows" in caught.value.fix
