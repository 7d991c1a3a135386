"""What is a leaf, what it is called, and which trees are refused."""

from __future__ import annotations

from collections import namedtuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paceline.base.errors import DataError
from paceline.data.tree import check_integers, count_rows, label, map_leaves, named_leaves, to_host

Pair = namedtuple("Pair", ["image", "label"])


def refusal(tree) -> DataError:
    with pytest.raises(DataError) as caught:
        count_rows(tree, noun="batch")
    return caught.value


def test_leaves_are_named_by_their_path():
    """Dict keys, positions and fields are joined by dots; a bare array has no name."""
    ones = np.ones(2)
    names = [name for name, _ in named_leaves({"inputs": {"tokens": ones}, "pair": Pair(ones, (ones, ones))})]
    assert names == ["inputs.tokens", "pair.image", "pair.label.0", "pair.label.1"]
    assert named_leaves(ones)[0][0] == ""


def test_an_error_speaks_of_a_bare_array_as_the_batch():
    """A leaf without a name is not printed as ''."""
    assert label("inputs.tokens", "batch") == "batch leaf 'inputs.tokens'"
    assert label("", "batch") == "the batch"


def test_a_list_of_numbers_is_one_array_and_a_list_of_arrays_is_structure():
    """``[[1, 2], [3, 4]]`` has 2 rows; ``[x, y]`` has two leaves."""
    host = to_host({"numbers": [[1, 2], [3, 4]], "arrays": [np.ones(2), np.zeros(2)]}, noun="data")
    np.testing.assert_array_equal(host["numbers"], np.array([[1, 2], [3, 4]]))
    assert isinstance(host["arrays"], list) and len(host["arrays"]) == 2


def test_mapping_keeps_the_structure():
    """A named tuple stays one."""
    doubled = map_leaves(lambda leaf: leaf * 2, Pair(np.ones(2), np.arange(2)))
    assert isinstance(doubled, Pair)
    assert doubled.label.tolist() == [0, 2]


def test_rows_are_counted_without_moving_arrays():
    """numpy, JAX and abstract arrays alike: only shapes are read."""
    tree = {"a": np.ones((5, 2)), "b": jnp.ones(5), "c": jax.ShapeDtypeStruct((5, 3), jnp.bfloat16)}
    assert count_rows(tree, noun="batch") == 5


def test_types_that_only_accelerators_use_are_accepted():
    """bfloat16 arrives as numpy kind V, like a record array, but is a number."""
    assert to_host(jnp.ones(3, jnp.bfloat16), noun="data").dtype == jnp.bfloat16


def test_different_row_counts_name_both_leaves():
    """Both names, both counts, and the rows that both have."""
    error = refusal({"image": np.ones((19, 2)), "label": np.ones(18)})
    assert "'label' has 18" in error.what and "'image' has 19" in error.what
    assert "18 rows are in both" in error.fix


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({}, "no array"),
        (None, "no array"),
        ({"x": np.ones(3), "scale": 2.0}, "'scale' is a scalar"),
        ({"x": np.ones((0, 4))}, "'x' has 0 rows"),
        ({"text": np.array(["a", "b"])}, "'text' is of type <U1"),
        ({"bytes": np.array([b"a"])}, "'bytes' is of type"),
        ({"mixed": np.array([1, None])}, "'mixed' is of type object"),
        ({"day": np.array(["2020-01-01"], "datetime64[D]")}, "'day' is of type datetime64"),
        ({"record": np.zeros(2, [("a", "f4")])}, "'record' is of type"),
        ({"ragged": [[1, 2], [3]]}, "'ragged' is a list"),
        ({"key": jax.random.split(jax.random.key(0), 2)}, "'key' is a"),
    ],
)
def test_what_no_device_can_split_is_refused_by_name(tree, words):
    """Empty, scalar, no rows, text, objects, dates, records, ragged lists, keys: each names the leaf."""
    assert words in refusal(tree).what


@pytest.mark.parametrize(
    ("leaf", "value", "narrow"),
    [
        (np.array([1, 2**31]), 2**31, "int32"),
        (np.array([[-(2**31) - 1], [0]]), -(2**31) - 1, "int32"),
        (np.array([2**32, 0], np.uint64), 2**32, "uint32"),
    ],
)
def test_integers_that_would_wrap_are_refused_by_name(leaf, value, narrow):
    """One beyond each end of 32 bits: leaf, value and the type that it leaves; with x64 it fits."""
    with pytest.raises(DataError) as caught:
        check_integers({"ids": leaf}, noun="batch")
    assert all(word in caught.value.what for word in ("batch leaf 'ids'", f"{value},", f"fit {narrow}"))
    assert "jax_enable_x64" in caught.value.fix and "2**3" in caught.value.fix
    with jax.enable_x64(True):
        check_integers({"ids": leaf}, noun="batch")
        assert jnp.asarray(leaf).tolist() == leaf.tolist()


@pytest.mark.parametrize(
    "leaf",
    [
        np.array([-(2**31), 2**31 - 1]),
        np.array([2**32 - 1], np.uint64),
        np.array([2**32 - 1], np.uint32),
        np.zeros((4, 0), np.int64),
        np.array([1e300]),
    ],
)
def test_integers_that_fit_pass(leaf):
    """The ends of 32 bits themselves, an empty leaf, and floats: JAX keeps the integers as they are."""
    check_integers(leaf, noun="batch")
    assert leaf.dtype.kind == "f" or jnp.asarray(leaf).tolist() == leaf.tolist()
