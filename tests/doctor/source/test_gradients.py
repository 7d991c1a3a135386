"""Gradients of mapped functions: not reduced, summed once too often, over an axis that is not there."""

from __future__ import annotations

import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paceline.topology.mesh import data_mesh
from tests.doctor.source.reading import HEADER_LINES, only

UNREDUCED = {
    "only the loss is averaged": """
        @functools.partial(jax.pmap, axis_name="batch")
        def step(params, state, batch):
            loss, grads = jax.value_and_grad(loss_fn)(params, batch)
            updates, state = optimizer.update(grads, state)
            return optax.apply_updates(params, updates), state, lax.pmean(loss, "batch")
    """,
    "nothing is averaged": """
        def step(params, state, batch):
            grads = jax.grad(loss_fn)(params, batch)
            updates, state = optimizer.update(grads, state)
            return optax.apply_updates(params, updates), state
        p_step = jax.pmap(step, axis_name="batch")
    """,
    "through a helper that returns both": """
        def both(params, batch):
            value, grads = jax.value_and_grad(loss_fn)(params, batch)
            return value, grads
        def step(params, state, batch):
            loss, grads = both(params, batch)
            loss = lax.pmean(loss, axis_name="batch")
            updates, state = optimizer.update(grads, state)
            return optax.apply_updates(params, updates), state, loss
        p_step = jax.pmap(step, axis_name="batch")
    """,
    "with a gradient function that has a name": """
        def step(params, state, batch):
            grad_fn = jax.value_and_grad(loss_fn, has_aux=True)
            (loss, aux), grads = grad_fn(params, batch)
            metrics = lax.pmean({"loss": loss, "aux": aux}, "batch")
            updates, state = optimizer.update(grads, state)
            return optax.apply_updates(params, updates), state, metrics
        p_step = jax.pmap(step, "batch")
    """,
    "a pmean inside the loss": """
        def mean_loss(params, batch):
            return lax.pmean(loss_fn(params, batch), "batch")
        def step(params, state, batch):
            grads = jax.grad(mean_loss)(params, batch)
            updates, state = optimizer.update(grads, state)
            return optax.apply_updates(params, updates), state
        p_step = jax.pmap(step, axis_name="batch")
    """,
    "shard_map without its check": """
        def step(params, state, batch):
            grads = jax.grad(loss_fn)(params, batch)
            updates, state = optimizer.update(grads, state)
            return optax.apply_updates(params, updates), state
        p_step = jax.shard_map(step, mesh=mesh, in_specs=(P(), P(), P("data")), out_specs=P(), check_vma=False)
    """,
}


@pytest.mark.parametrize("source", UNREDUCED.values(), ids=UNREDUCED)
def test_a_step_whose_gradients_are_not_reduced_is_an_error(check, source):
    """One error, at the line where the gradient is taken, with the pmean to add."""
    found = only(check(source))
    lines = textwrap.dedent(source).splitlines()
    taken = next(at for at, line in enumerate(lines, 1) if "grads = " in line and "=" in line)
    assert (found.level, found.line) == ("error", HEADER_LINES + taken)
    assert "not reduced over the devices" in found.what
    assert found.fix is not None and "jax.lax.pmean(gradients" in found.fix


def test_a_pmap_without_an_axis_name_is_told_to_have_one(check):
    """Nothing can be reduced without it."""
    found = only(
        check("""
            @jax.pmap
            def step(params, state, batch):
                grads = jax.grad(loss_fn)(params, batch)
                updates, state = optimizer.update(grads, state)
                return optax.apply_updates(params, updates), state
        """)
    )
    assert "no axis_name" in found.what and found.fix is not None and 'axis_name="data"' in found.fix


def test_gradients_that_only_leave_the_function_are_a_warning(check):
    """The caller may average them over the leading axis."""
    found = only(check("grads = jax.pmap(lambda params, batch: jax.grad(loss_fn)(params, batch))\n"))
    assert found.level == "warning" and "right only if the caller averages" in found.what


REDUCED = {
    "pmean": 'grads = lax.pmean(grads, "batch")',
    "pmean of a tuple": 'loss, grads = lax.pmean((loss, grads), "batch")',
    "a tree map": 'grads = jax.tree.map(lambda g: lax.pmean(g, "batch"), grads)',
    "psum and a division": 'grads = jax.tree.map(lambda g: lax.psum(g, "batch") / 4, grads)',
    "psum_scatter and all_gather": 'grads = lax.all_gather(lax.psum_scatter(grads, "batch"), "batch")',
    "a helper in the file": "grads = average(grads)",
    "a helper of another package": "grads = theirs.average(grads)",
    "an unknown function": "grads = sync(grads)",
}


@pytest.mark.parametrize("line", REDUCED.values(), ids=REDUCED)
def test_reduced_gradients_raise_no_alarm(check, line):
    """However they are reduced; a function that cannot be read gets the benefit of the doubt."""
    source = f"""
        import theirs
        from theirs import sync
        def average(tree):
            return lax.pmean(tree, "batch")
        def step(params, state, batch):
            loss, grads = jax.value_and_grad(loss_fn)(params, batch)
            {line}
            updates, state = optimizer.update(grads, state)
            return optax.apply_updates(params, updates), state
        p_step = jax.pmap(step, axis_name="batch")
    """
    assert not [finding.lines() for finding in check(source)]


UNREADABLE = {
    "a helper of another package that is given the gradient function": (
        "params, state, batch",
        "loss, grads = theirs.accumulate(jax.value_and_grad(loss_fn), params, batch)",
    ),
    "a function that is passed in": ("params, state, batch, sync", "grads = sync(jax.grad(loss_fn)(params, batch))"),
}


@pytest.mark.parametrize(("parameters", "line"), UNREADABLE.values(), ids=UNREADABLE)
def test_nothing_is_said_of_code_that_cannot_be_read(check, parameters, line):
    """It may reduce."""
    assert not check(f"""
        import theirs
        def step({parameters}):
            {line}
            updates, state = optimizer.update(grads, state)
            return optax.apply_updates(params, updates), state
        p_step = jax.pmap(step, axis_name="batch")
    """)


def test_accumulation_in_a_scan_and_one_reduction_raise_no_alarm(check):
    """The gradient comes out of a scan, and is reduced after it."""
    assert not check("""
        def step(params, state, batches):
            def body(total, batch):
                grads = jax.grad(loss_fn)(params, batch)
                return jax.tree.map(jnp.add, total, grads), None
            total, _ = lax.scan(body, zeros, batches)
            total = lax.pmean(total, "batch")
            updates, state = optimizer.update(total, state)
            return optax.apply_updates(params, updates), state
        p_step = jax.pmap(step, axis_name="batch")
    """)


def test_an_optimizer_that_reduces_raises_no_alarm(check):
    """A gradient transformation of the file averages over the axis."""
    assert not check("""
        averaging = optax.chain(optax.stateless(lambda g, p: lax.pmean(g, "batch")), optax.sgd(0.1))
        def step(params, state, batch):
            grads = jax.grad(loss_fn)(params, batch)
            updates, state = averaging.update(grads, state)
            return optax.apply_updates(params, updates), state
        p_step = jax.pmap(step, axis_name="batch")
    """)


def test_a_mapped_function_without_gradients_raises_no_alarm(check):
    """Evaluation has none to reduce."""
    assert not check('evaluate = jax.pmap(lambda params, batch: loss_fn(params, batch), axis_name="batch")\n')


CHECKED = """
    def step(params, batch):
        {before}
        grads = jax.grad({loss})(params, batch)
        {after}
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
    def mean_loss(params, batch):
        return lax.pmean(loss_fn(params, batch), "data")
    p_step = jax.shard_map(step, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())
"""
PMEAN, PSUM = 'grads = lax.pmean(grads, "data")', 'grads = lax.psum(grads, "data")'
PCAST = 'params = lax.pcast(params, "data", to="varying")'


@pytest.mark.parametrize(("after", "times"), [(PMEAN, "K times"), ("pass", "K times"), (PSUM, "K^2 times")])
def test_a_gradient_that_is_summed_already_is_an_error(check, after, times):
    """shard_map with its default check, replicated parameters: the fact that most ports trip over."""
    found = only(check(CHECKED.format(before="pass", loss="loss_fn", after=after)))
    assert found.level == "error" and times in found.what and found.fix is not None
    assert 'jax.lax.pcast(params, "data", to="varying")' in found.fix


@pytest.mark.parametrize(("before", "loss", "after"), [(PCAST, "loss_fn", PMEAN), ("pass", "mean_loss", "pass")])
def test_the_two_right_forms_raise_no_alarm(check, before, loss, after):
    """A cast before and one pmean after, or the pmean inside the loss."""
    assert not check(CHECKED.format(before=before, loss=loss, after=after))


def test_what_the_check_says_of_shard_map_is_what_jax_does():
    """x = 0..7, y = 2x, w = 0, K = 4: -280 unreduced and with pmean, -1120 with psum; -70 if right."""
    mesh, spec = data_mesh(jax.devices()[:4]), jax.sharding.PartitionSpec
    x = np.arange(8, dtype=np.float32)

    def loss(w, x):
        return jnp.mean((x * w - 2 * x) ** 2)

    def run(step):
        mapped = jax.shard_map(step, mesh=mesh, in_specs=(spec(), spec("data")), out_specs=spec())
        return float(jax.jit(mapped)(0.0, x))

    def cast(w, x):
        return jax.lax.pmean(jax.grad(loss)(jax.lax.pcast(w, "data", to="varying"), x), "data")

    def inside(w, x):
        return jax.grad(lambda w: jax.lax.pmean(loss(w, x), "data"))(w)

    assert run(jax.grad(loss)) == -280
    assert run(lambda w, x: jax.lax.pmean(jax.grad(loss)(w, x), "data")) == -280
    assert run(lambda w, x: jax.lax.psum(jax.grad(loss)(w, x), "data")) == -1120
    assert run(cast) == run(inside) == -70
    rows = x.reshape(4, 2)
    local = jax.pmap(lambda x: jax.grad(lambda w: jax.lax.pmean(loss(w, x), "d"))(0.0), axis_name="d")(rows)
    np.testing.assert_allclose(local, [-2, -26, -82, -170])  # a pmean inside the loss reduces nothing under pmap


@pytest.mark.parametrize(
    ("option", "said"), [('axis_name="devices"', "axis_name='devices'"), ("in_axes=0", "no axis_name")]
)
def test_an_axis_that_the_pmap_does_not_bind_is_an_error(check, option, said):
    """The collective, its axis and what the pmap has."""
    found = only(check(f'total = jax.pmap(lambda x: lax.psum(x, "batch"), {option})\n'))
    assert found.level == "error" and "'batch'" in found.what and said in found.what


def test_an_axis_that_vmap_binds_inside_raises_no_alarm(check):
    assert not check('f = jax.pmap(lambda x: jax.vmap(lambda y: lax.psum(y, "rows"), axis_name="rows")(x))\n')


def test_the_loss_may_live_in_a_file_beside(tmp_path, check):
    """The mapped function is followed into the module that it imports."""
    (tmp_path / "model.py").write_text(
        "import jax\ndef gradients(f, params, batch):\n    return jax.grad(f)(params, batch)\n"
    )
    found = check("""
        from model import gradients
        def step(params, state, batch):
            grads = gradients(loss_fn, params, batch)
            updates, state = optimizer.update(grads, state)
            return optax.apply_updates(params, updates), state
        p_step = jax.pmap(step, axis_name="batch")
    """)
    assert "not reduced" in only(found).what
