"""Where rows come from: arrays, map-style data sets, ready batches.

Owns: reading rows by index, and the choice of reader for what the user passed.
Not here: which rows to read (`order`), how many at once (`batch`), image decoding (`images`).
Invariant: reading the same index twice gives the same row, with the shape and type of every other row.

Shapes: N = rows of the source, b = rows read at once; a read gives a tree of ``[b, ...]`` numpy arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jax import Array, tree_util
from jaxtyping import Int64

from paceline.base.errors import DataError
from paceline.base.units import format_count
from paceline.data.tree import Tree, count_rows, is_number_list, label, map_leaves, named_leaves, to_host


@runtime_checkable
class Source(Protocol):
    """Rows that can be read in any order. The background feed calls `read` from one thread that is not the main one."""

    def __len__(self) -> int:
        """N, fixed for the run."""
        ...

    def read(self, indices: Int64[np.ndarray, " b"]) -> Tree:
        """The rows at `indices`, ``int64[b]``: a tree of numpy arrays ``[b, ...]`` in the same order."""
        ...


class ArraySource:
    """Rows of a tree of arrays in memory, or memory-mapped; made by `rows`."""

    def __init__(self, tree: Tree) -> None:
        self._tree = to_host(tree, noun="data")
        self._rows = count_rows(self._tree, noun="data")

    def __len__(self) -> int:
        return self._rows

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return sum(leaf.nbytes for _, leaf in named_leaves(self._tree))

    def read(self, indices: Int64[np.ndarray, " b"]) -> Tree:
        """Rows ``[b, ...]``: a view when `indices` are consecutive (do not write to it), else a copy."""
        _check_range(indices, self._rows)
        first = int(indices[0])
        if np.array_equal(indices, np.arange(first, first + len(indices))):
            return map_leaves(lambda leaf: leaf[first : first + len(indices)], self._tree)
        return map_leaves(lambda leaf: np.take(leaf, indices, axis=0), self._tree)


def rows(tree: Tree) -> ArraySource:
    """A source over arrays that share their leading dim.

    Args:
      tree: leaves ``[N, ...]`` that `np.asarray` takes: numpy, JAX (copied to the host once), host tensors, lists of
        numbers. An `np.memmap` is read from disk row by row, never as a whole.
    Raises: DataError: no leaf, a scalar leaf, leaves with different N, no rows, text or Python objects.
    """
    return ArraySource(tree)


class MapSource:
    """Rows of anything with ``len(dataset)`` and ``dataset[i]``: PyTorch, Hugging Face and Grain data sets.

    A row is a tree of arrays, host tensors or numbers; a list of numbers in it is one array.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def read(self, indices: Int64[np.ndarray, " b"]) -> Tree:
        """Rows ``[b, ...]``, stacked.

        Raises: DataError: a row differs from the first in structure, shape or type, or holds what no device holds.
        """
        _check_range(indices, len(self))
        return _stack([self._dataset[int(index)] for index in indices], indices.tolist())


def _check_range(indices: Int64[np.ndarray, " b"], num_rows: int) -> None:
    # A slice would clip and a negative index would wrap, both in silence.
    assert len(indices) > 0 and indices.min() >= 0 and indices.max() < num_rows, f"indices leave the {num_rows} rows"


def _stack(samples: list[Tree], indices: list[int]) -> Tree:
    first = to_host(samples[0], noun=f"row {indices[0]}")
    names = [name for name, _ in named_leaves(first)]
    first_leaves, treedef = tree_util.tree_flatten(first)
    columns: list[list[np.ndarray]] = [[] for _ in names]
    for index, sample in zip(indices, samples, strict=True):
        leaves, structure = tree_util.tree_flatten(to_host(sample, noun=f"row {index}"))
        if structure != treedef:
            raise _structure_error(index, sample, first_index=indices[0], names=names)
        for name, column, leaf, expected in zip(names, columns, leaves, first_leaves, strict=True):
            if leaf.shape != expected.shape or leaf.dtype != expected.dtype:
                raise _ragged_error(name, index, leaf, first_index=indices[0], expected=expected)
            column.append(leaf)
    return tree_util.tree_unflatten(treedef, [np.stack(column) for column in columns])


def _structure_error(index: int, sample: Tree, *, first_index: int, names: Sequence[str]) -> DataError:
    found = [name for name, _ in named_leaves(sample)]
    return DataError(
        what=f"row {index} has the leaves {found}, but row {first_index} has {list(names)}",
        why="rows of one batch are stacked leaf by leaf",
        fix="return the same keys for every row, with a number in place of a missing value",
    )


def _ragged_error(name: str, index: int, leaf: np.ndarray, *, first_index: int, expected: np.ndarray) -> DataError:
    return DataError(
        what=f"{label(name, 'data')} is {leaf.dtype}{list(leaf.shape)} in row {index}, "
        f"but {expected.dtype}{list(expected.shape)} in row {first_index}",
        why="rows of one batch are stacked, and a step is compiled for one shape and type",
        fix="pad, crop or cast the leaf to one shape and type in the data set",
    )


@dataclass
class StreamCount:
    """What `stream_batches` did with a stream so far; the report reads it. All in rows, but `dropped_batches`."""

    rows: int = 0
    dropped_rows: int = 0
    dropped_batches: int = 0
    padding_rows: int = 0


@dataclass(frozen=True, eq=False)
class BatchStream:
    """An iterable of ready batches, such as a DataLoader; made by `stream`. It cannot seek, and its order is its own.

    An iterable that starts again (a loader, a list given to `stream`) gives as many epochs as are asked; a generator
    gives one.

    Args:
      batches: yields trees of ``[b, ...]`` arrays.
    """

    batches: Iterable[Tree]
    count: StreamCount = field(default_factory=StreamCount)

    @property
    def one_shot(self) -> bool:
        """True for an iterator, which is empty after one pass."""
        return isinstance(self.batches, Iterator)

    def __iter__(self) -> Iterator[Tree]:
        return iter(self.batches)


def stream(batches: Iterable[Tree]) -> BatchStream:
    """Ready batches, taken as they come: says so of a list, which could hold rows as well.

    Args:
      batches: yields trees of ``[b, ...]`` arrays: a list, a loader, a generator.
    Raises: DataError: one array, dict or text, whose items are no batches; or nothing that can be iterated.
    """
    if isinstance(batches, BatchStream):
        return batches
    if isinstance(batches, (np.ndarray, Array, Mapping, str, bytes)) or not isinstance(batches, Iterable):
        raise DataError(
            what=f"{type(batches).__name__} is no iterable of ready batches",
            why="each item of a stream is trained on as one batch",
            fix="use paceline.stream([batch, ...]) or a loader for ready batches, paceline.rows(arrays) for rows",
        )
    return BatchStream(batches)


def as_source(data: Any) -> Source | BatchStream:
    """The reader for what the user passed.

    A `Source` or `BatchStream` stays itself; arrays and dicts, tuples or registered nodes of arrays become `rows`; what
    has ``len`` and ``[i]`` becomes a `MapSource`; any other iterable a `BatchStream` of ready batches. A list is read
    by row too, but only if its items cannot be batches: `stream` says that they are.

    Raises: DataError: none of these; arrays that `rows` refuses; a list whose items could be rows or ready batches.
    """
    if isinstance(data, (Source, BatchStream)):
        return data
    if isinstance(data, (np.ndarray, Array)):
        return rows(data)
    if isinstance(data, Mapping):
        return rows(dict(data))
    # A data frame has len and [], but [] takes a column.
    unreadable = isinstance(data, (str, bytes)) or data is None or hasattr(data, "columns")
    if not unreadable:
        if isinstance(data, list):
            _check_unambiguous(data)
        elif not tree_util.all_leaves([data]):
            return rows(data)
        if hasattr(data, "__len__") and hasattr(data, "__getitem__"):
            return MapSource(data)
        if isinstance(data, Iterable):
            return BatchStream(data)
    raise DataError(
        what=f"{type(data).__name__} is no source of rows",
        why="rows are read by index, or batches by iteration",
        fix='use paceline.rows({"x": x, "y": y}) for arrays, a data set with len() and [i], or an iterator of batches',
    )


def _check_unambiguous(data: list[Any]) -> None:
    """Refuse a list of arrays, or of trees of arrays with one leading dim: read the wrong way, it would not fail.

    The first item decides, since all must be alike. A list of numbers, nested or not, is one array and so rows.
    """
    if is_number_list(data[:1]) or not data:
        return
    leaves, _ = tree_util.tree_flatten_with_path(data[0], is_leaf=is_number_list)
    sizes = {shape[0] if shape else 1 for shape in (_shape(leaf) for _, leaf in leaves)}
    if len(sizes) != 1 or min(sizes) < 2:
        return
    stacked = f"np.stack([row{tree_util.keystr(leaves[0][0])} for row in data])"
    raise DataError(
        what=f"a list of {format_count(len(data), 'item')}, the first made of arrays with {min(sizes)} entries each, "
        "could be rows or ready batches",
        why="read as the other of the two, it would train on wrong rows without an error",
        fix="use paceline.stream(data) if each item is a ready batch; if each is a row, stack every leaf for "
        f"paceline.rows, such as {stacked}, or pass a data set object with len() and [i]{_tuple_hint(data)}",
    )


def _shape(leaf: Any) -> tuple[int, ...]:
    """Of an array, a tensor or a list of numbers; ``()`` for what has none."""
    try:
        return tuple(np.shape(leaf))
    except (TypeError, ValueError, RuntimeError):
        return ()


def _tuple_hint(data: list[Any]) -> str:
    """For ``[X, Y]``: arrays with the same rows, perhaps meant as the leaves of one tree."""
    if not all(isinstance(item, (np.ndarray, Array)) for item in data):
        return ""
    alike = len(data) > 2 and len({(item.shape, item.dtype) for item in data}) == 1
    if alike or len({item.shape[:1] for item in data}) > 1 or len(data) < 2:
        return ""
    return "; if the arrays are leaves of the same rows, pass them as a tuple: (X, Y)"
