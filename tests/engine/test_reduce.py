"""What a step sends between devices, read from its program: one gradient reduction an update, no row ever moves."""

from __future__ import annotations

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec

from paceline.engine.parallel import Parallel
from paceline.engine.reduce import mean_packed, sum_gradients, sum_packed
from paceline.topology.mesh import data_mesh
from tests.engine.helpers import LOCAL_SCHEMES, lowered_text, place, start, step_of

OPTIMIZER = optax.sgd(0.1, momentum=0.9)
ROWS, INPUTS, HIDDEN = 16, 3, 5
GRADIENT_BYTES = 4 * (INPUTS * HIDDEN + HIDDEN)

LOWERED = re.compile(r'"stablehlo\.(all_\w+|reduce_scatter|collective_\w+)".*?\}\) : \((.*?)\) ->', re.DOTALL)
TENSOR = re.compile(r"tensor<((?:\d+x)*)([a-z]+)(\d+)>")
COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
MOVES = ("all-to-all", "collective-permute", "all-gather", "reduce-scatter", "ragged-all-to-all")


def loss(params, batch, rng):
    """A scan inside, so that the program has loops of the user's own as well."""
    hidden = jnp.tanh(batch["x"] @ params["w"])
    hidden = jax.lax.scan(lambda carry, _: (jnp.tanh(carry), None), hidden, length=3)[0]
    return (hidden @ params["v"] - batch["y"]) ** 2, {"size": jnp.abs(hidden[:, 0])}


def batch() -> dict[str, np.ndarray]:
    return {"x": np.ones((ROWS, INPUTS), np.float32), "y": np.ones(ROWS, np.float32)}


def params() -> dict[str, np.ndarray]:
    return {"w": np.ones((INPUTS, HIDDEN), np.float32), "v": np.ones(HIDDEN, np.float32)}


def sent_bytes(text: str) -> list[int]:
    """Bytes of each operand of each collective in a StableHLO program, sorted."""
    return sorted(
        math.prod(int(size) for size in shape.split("x") if size) * int(bits) // 8
        for _, operands in LOWERED.findall(text)
        for shape, _, bits in TENSOR.findall(operands)
    )


def compiled_text(parallel: Parallel, devices: int) -> str:
    step = step_of(loss, OPTIMIZER, parallel, devices=devices)
    return step.compiled(start(step, params()), *place(step, batch())).program.as_text()


def computations(text: str) -> dict[str, list[str]]:
    """Lines of each computation of a compiled program, by name."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        if opening := COMPUTATION.match(line):
            name = opening[1]
        found.setdefault(name, []).append(line)
    return found


def lines_in_loops(text: str) -> list[str]:
    """Every line that runs inside a while loop, computations that it calls included."""
    of = computations(text)
    todo = [name for lines in of.values() for line in lines for name in re.findall(r"body=%?([\w.\-]+)", line)]
    assert todo, "the program has no loop"
    seen: set[str] = set()
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += [word for line in of[name] for word in re.findall(r"%?([\w.\-]+)", line) if word in of]
    return [line for name in seen for line in of[name]]


@pytest.mark.parametrize("scheme", LOCAL_SCHEMES)
def test_the_gradients_cross_the_wire_once_whatever_the_number_of_microbatches(scheme):
    """One and four microbatches send the same: each gradient leaf once, and packed totals of 32 bytes at most."""
    sent = [
        sent_bytes(
            lowered_text(
                step_of(loss, OPTIMIZER, Parallel(scheme, accumulation=n), devices=4), batch(), params=params()
            )
        )
        for n in (1, 4)
    ]
    assert sent[0] == sent[1]
    totals = sum(sent[0]) - GRADIENT_BYTES
    assert 0 < totals <= 32
    assert {4 * INPUTS * HIDDEN, 4 * HIDDEN} <= set(sent[0])


def test_no_collective_runs_inside_the_loop_over_microbatches():
    """The compiled program of `per_device`, four microbatches: all-reduces there are, but in no loop."""
    text = compiled_text(Parallel("per_device", accumulation=4), 4)
    assert " all-reduce(" in text
    assert not [
        line for line in lines_in_loops(text) if " all-reduce" in line or any(f" {move}" in line for move in MOVES)
    ]


def test_microbatches_under_global_view_move_no_row():
    """Four devices, four microbatches: the compiled program reduces, but exchanges, gathers and permutes nothing."""
    text = compiled_text(Parallel("global_view", accumulation=4), 4)
    assert " all-reduce(" in text
    assert not [move for move in MOVES if f" {move}(" in text or f" {move}-start(" in text]


def test_a_contiguous_split_would_have_moved_rows():
    """The check above can fail: rows reshaped to ``(n, B/n)`` and split over devices compile to an exchange."""
    mesh = data_mesh(jax.devices()[:4])
    rows, parts = (jax.NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), (None, "data")))
    program = jax.jit(lambda x: x.reshape(4, ROWS // 4), in_shardings=rows, out_shardings=parts)
    text = program.lower(jax.ShapeDtypeStruct((ROWS,), jnp.float32)).compile().as_text()
    assert any(f" {move}(" in text for move in MOVES)


def on_devices(function, tree, *, devices=4):
    """`function` of each device's slice of ``[devices, ...]`` leaves; every device's result, stacked."""
    mesh = data_mesh(jax.devices()[:devices])

    def local(tree):
        return jax.tree.map(lambda leaf: leaf[None], function(jax.tree.map(lambda leaf: leaf[0], tree)))

    mapped = jax.shard_map(
        local, mesh=mesh, in_specs=PartitionSpec("data"), out_specs=PartitionSpec("data"), check_vma=False
    )
    return jax.tree.map(np.asarray, jax.jit(mapped)(tree))


def mixed_tree() -> dict:
    """Leaves of several types and ranks, with integers that float32 cannot hold."""
    draw = np.random.default_rng(0)
    return {
        "a": draw.integers(-8, 8, size=(4, 2, 3)).astype(np.float32),
        "b": [draw.integers(-8, 8, size=(4,)).astype(np.float32), np.full((4, 2), 2**24 + 1, np.int32)],
        "c": draw.integers(-8, 8, size=(4, 5)).astype(jnp.bfloat16),
    }


def test_packed_sums_equal_sums_leaf_by_leaf():
    """Types, shapes and values as numpy sums them, exactly (small integers), the same on every device."""
    got = on_devices(lambda tree: sum_packed(tree, "data"), mixed_tree())
    for leaf, whole in zip(jax.tree.leaves(got), jax.tree.leaves(mixed_tree()), strict=True):
        assert leaf.dtype == whole.dtype
        np.testing.assert_array_equal(
            leaf, np.broadcast_to(whole.sum(axis=0, dtype=np.float64), whole.shape).astype(whole.dtype)
        )
    assert on_devices(lambda tree: sum_packed({}, "data"), mixed_tree()) == {}


def test_packed_means_equal_means_leaf_by_leaf():
    """As numpy takes them, exactly: sums of small integers over four."""
    tree = {"a": mixed_tree()["a"], "b": mixed_tree()["b"][0]}
    got = on_devices(lambda tree: mean_packed(tree, "data"), tree)
    for name, whole in tree.items():
        np.testing.assert_array_equal(got[name], np.broadcast_to(whole.mean(axis=0), whole.shape))


def messages(tree) -> int:
    """Collectives that `sum_packed` of the tree takes on four devices."""
    mesh = data_mesh(jax.devices()[:4])
    mapped = jax.shard_map(
        lambda tree: sum_packed(tree, "data"),
        mesh=mesh,
        in_specs=PartitionSpec("data"),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    return len(LOWERED.findall(jax.jit(mapped).lower(tree).as_text()))


def test_packed_leaves_share_their_messages():
    """Six leaves of float32 and int32, as a step has them: one message. Counts alone: one. A third type: one more."""
    floats = {"a": np.ones((4, 2), np.float32), "b": np.ones((4, 3), np.float32), "c": np.ones((4,), np.float32)}
    counts = {"d": np.ones((4,), np.int32), "e": np.ones((4, 2), np.int32), "f": np.ones((4,), np.int32)}
    assert messages(floats | counts) == messages(floats) == messages(counts) == 1
    assert messages(floats | counts | {"g": np.ones((4, 2), jnp.bfloat16)}) == 2


whole_numbers = st.integers(-(2**31), 2**31 - 1)


@settings(max_examples=60)
@given(counts=st.lists(whole_numbers, min_size=4, max_size=4))
@example(counts=[2**31 - 1] * 4)
@example(counts=[-(2**31)] * 4)
@example(counts=[2**24 + 1, -1, 2**11 - 1, -(2**11)])
def test_counts_that_ride_with_floats_are_summed_exactly(counts):
    """Any int32 on each of four devices: the sum is Python's, modulo 2**32 as int32 wraps; the float beside it too."""
    count, real = summed_beside_a_float()(np.array(counts, np.int32), np.ones(4, np.float32))
    wanted = (sum(counts) + 2**31) % 2**32 - 2**31
    assert count.dtype == jnp.int32 and int(count) == wanted and float(real) == 4


@functools.cache
def summed_beside_a_float():
    mesh = data_mesh(jax.devices()[:4])
    whole, rows = PartitionSpec(), PartitionSpec("data")

    def local(count, real):
        return sum_packed((count[0], real[0]), "data")

    return jax.jit(jax.shard_map(local, mesh=mesh, in_specs=rows, out_specs=whole, check_vma=False))


@pytest.mark.parametrize("dtype, wanted", [(None, 4 + 2.0**-10), ("float32", 4 + 2.0**-10), ("bfloat16", 4.0)])
def test_a_sum_of_gradients_rounds_only_to_the_type_asked_for(dtype, wanted):
    """1 + 2**-10 on one device and 1 on three: the small part is lost in bfloat16 alone, and the leaf stays float32."""
    tree = {"g": np.array([1 + 2.0**-10, 1, 1, 1], np.float32)}
    got = on_devices(lambda tree: sum_gradients(tree, "data", dtype=dtype), tree)
    assert got["g"].dtype == np.float32
    np.testing.assert_array_equal(got["g"], np.full(4, wanted, np.float32))
