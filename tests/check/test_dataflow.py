"""The abstract interpreter against programs whose answer is known, and against real devices.

Each program takes a value that is the same on all devices and one that is each device's own. The first table says by
hand which results differ; the same table is then held against what four devices compute.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from paceline.check.dataflow import flow
from paceline.check.values import SPLIT, differs, varies

AXIS = "data"
K = 4
PAIRS = [[0, 1], [2, 3]]
RING = [(device, (device + 1) % K) for device in range(K)]


@jax.custom_vjp
def reduced_backwards(x):
    return x


reduced_backwards.defvjp(lambda x: (x, None), lambda _, g: (lax.pmean(g, AXIS),))


@jax.custom_jvp
def doubled(x):
    return 2 * x


doubled.defjvp(lambda primals, tangents: (doubled(*primals), 2 * tangents[0]))


@jax.custom_batching.custom_vmap
def shifted(x):
    return x + 1


@shifted.def_vmap
def _(axis_size, in_batched, x):
    return x + 1, in_batched[0]


def later(same, own):
    """The carry that is handed on is the same in the first iteration, and each device's own in the second."""
    return lax.scan(lambda carry, _: ((carry[1], own), carry[0]), (same, same), None, length=3)[0][0]


def two_later(same, own):
    """The difference needs three iterations to arrive."""
    return lax.fori_loop(0, 3, lambda _, c: (c[1], c[2], own), (same, same, same))[0]


def countdown(start, value):
    """Add 1 to `value`, `start` times: its result depends on the number of iterations alone."""
    return lax.while_loop(lambda c: c[0] > 0, lambda c: (c[0] - 1, c[1] + 1), (start, value))[1]


def through_reference(value):
    reference = jax.new_ref(jnp.zeros(4))
    reference[0] = value[0]
    return reference[...]


def reference_in_loop(same, own):
    """What the second iteration reads was written by the first; nothing is carried."""
    reference = jax.new_ref(same)

    def body(carry, _):
        read = reference[...]
        reference[...] = own
        return carry, read

    return lax.scan(body, None, None, length=2)[1]


# name: (program of (same, own), whether its result differs between devices)
PROGRAMS = {
    "what is the same": (lambda same, own: same * 2, False),
    "what is each device's own": (lambda same, own: same * own, True),
    "psum": (lambda same, own: lax.psum(own, AXIS), False),
    "pmean": (lambda same, own: lax.pmean(own, AXIS), False),
    "pmax": (lambda same, own: lax.pmax(own, AXIS), False),
    "pmin": (lambda same, own: lax.pmin(own, AXIS), False),
    "all_gather": (lambda same, own: lax.all_gather(own, AXIS), False),
    "psum of a tree": (lambda same, own: sum(lax.psum((own, same), AXIS)), False),
    "pmean and something of one's own": (lambda same, own: lax.pmean(own, AXIS) + own, True),
    "psum within groups": (lambda same, own: lax.psum(own, AXIS, axis_index_groups=PAIRS), True),
    "axis_index": (lambda same, own: lax.axis_index(AXIS), True),
    "psum of axis_index": (lambda same, own: lax.psum(lax.axis_index(AXIS), AXIS), False),
    "ppermute": (lambda same, own: lax.ppermute(own, AXIS, RING), True),
    "all_to_all": (lambda same, own: lax.all_to_all(own, AXIS, 0, 0), True),
    "a part of what is the same": (lambda same, own: lax.all_to_all(same, AXIS, 0, 0), True),
    "psum_scatter": (lambda same, own: lax.psum_scatter(own, AXIS), True),
    "psum_scatter and all_gather": (lambda same, own: lax.all_gather(lax.psum_scatter(own, AXIS), AXIS), False),
    "pcast": (lambda same, own: lax.pcast(same, AXIS, to="varying"), False),
    "jit": (lambda same, own: jax.jit(lambda x: jax.jit(jnp.sin)(x))(own), True),
    "jit around pmean": (lambda same, own: jax.jit(lambda x: lax.pmean(x, AXIS))(own), False),
    "checkpoint": (lambda same, own: jax.checkpoint(jnp.sin)(own), True),
    "gradient through checkpoint": (lambda same, own: jax.grad(lambda x: jax.checkpoint(jnp.sin)(x).sum())(own), True),
    "custom_vjp": (lambda same, own: reduced_backwards(own), True),
    "psum inside custom_vjp": (lambda same, own: jax.grad(lambda w: (reduced_backwards(w) * own).sum())(same), False),
    "custom_jvp": (lambda same, own: doubled(own), True),
    "custom_vmap": (lambda same, own: shifted(own), True),
    "gradient of a local loss": (lambda same, own: jax.grad(lambda w: (w * own).sum())(same), True),
    "reduced gradient": (lambda same, own: lax.pmean(jax.grad(lambda w: (w * own).sum())(same), AXIS), False),
    "scan over what is one's own": (lambda same, own: lax.scan(lambda c, x: (c + x, None), 0.0, own)[0], True),
    "scan over what is the same": (lambda same, own: lax.scan(lambda c, x: (c + x, c), 0.0, same)[1], False),
    "pmean in a scan": (lambda same, own: lax.scan(lambda c, x: (c + lax.pmean(x, AXIS), c), 0.0, own)[1], False),
    "a carry that differs from the second iteration on": (later, True),
    "a carry that differs from the third iteration on": (two_later, True),
    "a while loop of equal length": (lambda same, own: countdown(3.0, same), False),
    "a while loop whose length is one's own": (lambda same, own: countdown(jnp.floor(own[0] * 9), same), True),
    "a branch of one's own choice": (lambda same, own: lax.cond(own[0] > 0.1, jnp.sin, jnp.cos, same), True),
    "a branch of equal choice": (lambda same, own: lax.cond(same[0] > 0.5, jnp.sin, jnp.cos, same), False),
    "one branch of two": (lambda same, own: lax.cond(same[0] > -1, lambda: own, lambda: same), True),
    "pmean in a branch": (
        lambda same, own: lax.cond(same[0] > -1, lambda: lax.pmean(own, AXIS), lambda: same),
        False,
    ),
    "a switch": (lambda same, own: lax.switch(1, [jnp.sin, jnp.cos], own), True),
    "where": (lambda same, own: jnp.where(lax.axis_index(AXIS) == 0, same, 2 * same), True),
    "the first half of a barrier": (lambda same, own: lax.optimization_barrier((same, own))[0], False),
    "the second half of a barrier": (lambda same, own: lax.optimization_barrier((same, own))[1], True),
    "reduction by two values": (
        lambda same, own: lax.reduce((same, own), (0.0, 0.0), lambda a, b: (b[1] + a[0], a[1]), (0,))[0],
        True,
    ),
    "a mutable array": (lambda same, own: through_reference(own), True),
    "a mutable array of what is the same": (lambda same, own: through_reference(same), False),
    "a mutable array in a loop": (reference_in_loop, True),
    "a pure callback": (lambda same, own: jax.pure_callback(np.sin, own, own), True),
    "a pure callback of what is the same": (lambda same, own: jax.pure_callback(np.sin, same, same), False),
    "a linear solve": (lambda same, own: jnp.linalg.solve(jnp.diag(own + 1), same), True),
    "vmap": (lambda same, own: jax.vmap(lambda x: x + lax.pmean(x, AXIS))(own), True),
    "a mean over a vmapped axis": (
        lambda same, own: jax.vmap(lambda x: lax.pmean(x, "rows"), axis_name="rows")(own),
        True,
    ),
    "a draw": (lambda same, own: jax.random.normal(jax.random.fold_in(jax.random.key(0), lax.axis_index(AXIS))), True),
    "a draw from one key": (lambda same, own: jax.random.normal(jax.random.key(0), (3,)), False),
}  # fmt: skip

table = pytest.mark.parametrize(("program", "expected"), PROGRAMS.values(), ids=PROGRAMS)
SAME = jnp.linspace(0.1, 0.9, K)
OWN = jnp.stack([jnp.roll(SAME, device) * (1 + device) / K for device in range(K)])


def outputs(program, *arguments, labels, axes=()):
    """Values of the results of a program, with these axes of size K bound around it."""
    if axes:
        mesh = AbstractMesh((K,) * len(axes), axes, axis_types=(AxisType.Auto,) * len(axes))
        program = mapped(program, ins=PartitionSpec(), outs=PartitionSpec(), mesh=mesh)
    return flow(jax.make_jaxpr(program)(*arguments), [frozenset(given) for given in labels]).outputs


def mapped(function, *, ins, outs, mesh):
    return jax.shard_map(function, mesh=mesh, in_specs=ins, out_specs=outs, check_vma=False)


@table
def test_what_differs_between_devices_is_told(program, expected):
    """By hand: exactly the results that depend on something of a device's own and are not reduced since."""
    (output,) = outputs(program, SAME, OWN[0], labels=[(), {varies(AXIS)}], axes=(AXIS,))
    assert differs(output.labels) is expected


@pytest.fixture(scope="module")
def computed():
    """The result of every program on four devices, compiled as one program."""
    step = jax.pmap(lambda same, own: [f(same, own) for f, _ in PROGRAMS.values()], axis_name=AXIS, in_axes=(None, 0))
    return dict(zip(PROGRAMS, step(SAME, OWN), strict=True))


@pytest.mark.parametrize("name", PROGRAMS)
def test_devices_agree_with_the_table(name, computed):
    """Four devices compute bitwise the same exactly where the table says so."""
    shards = {np.asarray(row).tobytes() for row in computed[name]}
    assert (len(shards) > 1) is PROGRAMS[name][1]


def test_labels_of_all_inputs_arrive():
    """A product depends on both factors; what is not used leaves no label."""
    (output,) = outputs(lambda a, b, c: a * b, 1.0, 2.0, 3.0, labels=[{"a"}, {"b"}, {"c"}])
    assert output.labels == {"a", "b"}


def test_a_collective_removes_its_own_axis_only():
    """On a mesh of two axes a mean over one leaves what varies over the other."""
    both = {varies("data"), varies("model")}

    def program(x):
        return lax.pmean(x, "data"), lax.pmean(x, ("data", "model"))

    one, all_axes = outputs(program, 1.0, labels=[both], axes=("data", "model"))
    assert one.labels == {varies("model")} and not all_axes.labels


def test_a_host_value_may_differ():
    """`io_callback` asks each device's host, which may say something else; a pure callback may not."""

    def asked(x):
        return x + io_callback(lambda: np.float32(0), jax.ShapeDtypeStruct((), np.float32))

    (output,) = outputs(asked, 1.0, labels=[()], axes=(AXIS,))
    assert differs(output.labels)


def test_an_unknown_operation_takes_all_labels_and_the_axes_that_vary_inside():
    """A custom linear solve is not interpreted: an `axis_index` in its matrix still shows."""

    def scale(x):
        return x * (1 + lax.axis_index(AXIS))

    def solve(b):
        return lax.custom_linear_solve(scale, b, lambda _, b: b, symmetric=True)

    (output,) = outputs(solve, SAME, labels=[{"b"}], axes=(AXIS,))
    assert output.labels == {"b", varies(AXIS)}


MESH = AbstractMesh((K,), (AXIS,), axis_types=(AxisType.Auto,))
WHOLE, PARTS = PartitionSpec(), PartitionSpec(AXIS)


def test_a_spec_says_what_differs_inside_of_a_shard_map():
    """A split input varies inside, a whole one does not; a result that is put together again is split."""
    step = mapped(
        lambda w, x: (w + lax.pmean(x.sum(), AXIS), w + x.sum(), x),
        ins=(WHOLE, PARTS),
        outs=(WHOLE, WHOLE, PARTS),
        mesh=MESH,
    )
    good, bad, rows = outputs(step, 1.0, jnp.ones(K), labels=[{SPLIT}, {SPLIT}])
    assert not good.labels
    assert bad.labels == {varies(AXIS)}, "check_vma=False lets it through, and its sharding says that it is whole"
    assert rows.labels == {SPLIT}


def test_a_checked_shard_map_is_read_too():
    """With check_vma=True the gradient of a whole input is summed by JAX: it does not differ."""
    gradient = jax.shard_map(
        lambda w, x: jax.grad(lambda w: (w * x).sum())(w), mesh=MESH, in_specs=(WHOLE, PARTS), out_specs=WHOLE
    )
    (output,) = outputs(gradient, 1.0, jnp.ones(K), labels=[{SPLIT}, {SPLIT}])
    assert not output.labels


def test_equal_tokens_are_equal_values():
    """A token follows from how a value is made, through calls and reshapes of one key."""

    def program(key):
        first, second = jax.random.split(key)
        again = jax.jit(lambda key: jax.random.split(key))(key)
        other = jax.random.split(key, 3)[0]
        return first, again[0], second, other, jax.random.wrap_key_data(jax.random.key_data(first))

    first, again, second, other, wrapped = (v.token for v in outputs(program, jax.random.key(0), labels=[()]))
    assert first == again == wrapped
    assert len({first, second, other}) == 3
