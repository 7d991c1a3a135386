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


@pytest.mark.parametrize(
    ("after", "times", "level"),
    [(PMEAN, "K times", "error"), ("pass", "K times", "warning"), (PSUM, "K^2 times", "error")],
)
def test_a_gradient_that_is_summed_already_is_told(check, after, times, level):
    """shard_map with its default check, replicated parameters: the fact that most ports trip over."""
    found = only(check(CHECKED.format(before="pass", loss="loss_fn", after=after)))
    assert found.level == level and times in found.what and found.fix is not None
    assert 'jax.lax.pcast(params, "data", to="varying")' in found.fix


@pytest.mark.parametrize(("before", "loss", "after"), [(PCAST, "loss_fn", PMEAN), ("pass", "mean_loss", "pass")])
def test_the_two_right_forms_raise_no_alarm(check, before, loss, after):
    """A cast before and one pmean after, or the pmean inside the loss."""
    assert not check(CHECKED.format(before=before, loss=loss, after=after))


@pytest.mark.parametrize("after", [PMEAN, "pass", PSUM])
def test_the_gradient_of_a_sum_over_all_rows_is_only_a_warning(check, after):
    """Divided by the number of all rows, the sum of the devices is right: the finding says for which loss it holds."""
    total = "    def total(params, batch):\n        return jnp.sum(loss_fn(params, batch)) / 1024\n"
    found = only(check(total + CHECKED.format(before="pass", loss="total", after=after)))
    assert found.level == "warning" and "if its loss is a mean over the rows of one device" in found.what


PLAIN = """
    def step(params, batch):
        grads = jax.grad({loss})(params, batch)
        {line}
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
    def total(params, batch):
        return jnp.sum((batch["x"] * params["w"]) ** 2)
    p_step = jax.pmap(step, axis_name="batch")
"""


def test_a_psum_of_mean_gradients_under_pmap_is_a_warning(check):
    """K times the gradient; the fix is pmean."""
    found = only(check(PLAIN.format(loss="loss_fn", line='grads = lax.psum(grads, "batch")')))
    assert found.level == "warning" and "K times those of the mean loss" in found.what
    assert "jax.lax.pmean" in (found.fix or "")


@pytest.mark.parametrize(
    ("loss", "line"),
    [
        ("total", 'grads = lax.psum(grads, "batch")'),
        ("loss_fn", 'grads = jax.tree.map(lambda g: lax.psum(g, "batch") / lax.axis_size("batch"), grads)'),
        (
            "loss_fn",
            'scale = 1 / jax.device_count(); grads = jax.tree.map(lambda g: g * scale, lax.psum(grads, "batch"))',
        ),
    ],
)
def test_a_psum_that_may_be_right_raises_no_alarm(check, loss, line):
    """Of a sum, or with a division anywhere in the step."""
    assert not check(PLAIN.format(loss=loss, line=line))


def test_a_norm_of_gradients_that_leave_is_no_update(check):
    """Measured with optax, not applied: the caller may average them."""
    source = """
        def step(params, batch):
            grads = jax.grad(loss_fn)(params, batch)
            return grads, optax.global_norm(grads)
        p_step = jax.pmap(step, axis_name="batch")
    """
    assert only(check(source)).level == "warning"


def test_a_division_counts_outside_of_the_loss_alone(check):
    """One at the top of the file may average the sum; one in the loss, of the inputs, does not."""
    step = PLAIN.format(loss="scaled", line='grads = jax.tree.map(lambda g: g * SCALE, lax.psum(grads, "batch"))')
    loss = "    def scaled(params, batch):\n        return jnp.mean((batch['x'] / 255 * params['w']) ** 2)\n"
    assert "K times" in only(check("    SCALE = 0.5\n" + loss + step)).what
    assert not check("    SCALE = 1 / jax.device_count()\n" + loss + step)


BY_HAND = {
    "a tree map over both": "return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)",
    "a tree map over keywords of a helper": "return jax.tree.map(sgd, params, grads)",
    "a tree map of a JAX function": "return jax.tree.map(jnp.subtract, params, grads)",
    "a difference": "return params - 0.1 * grads",
    "a name that is assigned again": "params = params - 0.1 * grads; return params",
    "in place": "params -= 0.1 * grads; return params",
    "a helper of the file": "return sgd(params, grads)",
    "a helper with keywords": "return sgd(gradient=grads, weight=params)",
    "a comprehension": "return [p - 0.1 * g for p, g in zip(params, grads)]",
    "a dictionary": "return {name: params[name] - 0.1 * grads[name] for name in params}",
    "a helper that calls the optimizer": "return apply(optimizer, params, grads)",
}


@pytest.mark.parametrize("line", BY_HAND.values(), ids=BY_HAND)
def test_an_update_by_hand_with_gradients_that_are_not_reduced_is_an_error(check, line):
    """Whatever joins the parameters with the gradients is an update; with a pmean before it nothing is said."""
    source = """
        def sgd(weight, gradient):
            return weight - 0.1 * gradient
        def apply(optimizer, params, values):
            return optax.apply_updates(params, optimizer.update(values, None)[0])
        @functools.partial(jax.pmap, axis_name="batch")
        def step(params, batch):
            grads = jax.grad(loss_fn)(params, batch)
            {before}
            {line}
    """
    found = only(check(source.format(line=line, before="loss = lax.pmean(loss_fn(params, batch), 'batch')")))
    assert found.level == "error" and "not reduced" in found.what and "caller averages" not in found.what
    assert not check(source.format(line=line, before="grads = lax.pmean(grads, 'batch')"))


def test_parameters_that_are_averaged_after_the_update_raise_no_alarm(check):
    """The mean of the devices' SGD updates is the update with the mean gradient; also in a loop."""
    source = """
        @functools.partial(jax.pmap, axis_name="batch")
        def step(params, batches):
            {loop}
                params = lax.pmean(params, "batch")
                params = params - 0.1 * jax.grad(loss_fn)(params, batches)
            {after}
    """
    assert not check(source.format(loop="for batch in batches:", after="return params"))
    assert not check(source.format(loop="if True:", after="return lax.pmean(params, 'batch')"))
    assert check(source.format(loop="if True:", after="return params"))


def test_an_update_with_a_gradient_in_the_expression_or_of_a_helper_is_an_error(check):
    """The gradient has no name of its own; a helper of the file takes it."""
    inline = "p_step = jax.pmap(lambda w, x: w - 0.1 * jax.grad(loss_fn)(w, x), axis_name='batch')\n"
    assert only(check(inline)).level == "error"
    helped = """
        def gradients(f, weights, batch):
            return jax.grad(f)(weights, batch)
        def step(params, batch):
            return params - 0.1 * gradients(loss_fn, params, batch)
        p_step = jax.pmap(step, axis_name="batch")
    """
    assert only(check(helped)).level == "error"


def test_gradients_that_are_added_up_and_leave_are_a_warning(check):
    """Accumulation joins gradients with gradients: no update."""
    found = only(
        check("""
            def step(params, total, batch):
                grads = jax.grad(loss_fn)(params, batch)
                return jax.tree.map(jnp.add, total, grads), jax.tree.map(lambda t, g: t + g, total, grads)
            p_step = jax.pmap(step, axis_name="batch")
        """)
    )
    assert found.level == "warning"


def test_a_shard_map_without_its_check_that_updates_by_hand_is_an_error(check):
    """Its out_specs P() say that all devices have the same."""
    source = CHECKED.format(before="pass", loss="loss_fn", after="pass").replace("P())\n", "P(), check_vma=False)\n")
    assert only(check(source)).level == "error"


INPUTS = {
    "saliency": "jax.pmap(lambda params, b: jax.grad(lambda b: loss_fn(params, b))(b))",
    "by number": "jax.pmap(lambda params, b: jax.grad(loss_fn, argnums=1)(params, b))",
    "an adversarial example": "jax.pmap(lambda params, b: b + 0.1 * jnp.sign(jax.grad(loss_fn, argnums=1)(params, b)))",
}


@pytest.mark.parametrize("source", INPUTS.values(), ids=INPUTS)
def test_gradients_with_respect_to_an_input_raise_no_alarm(check, source):
    """Each device wants those of its own rows; a parameter that all devices share is no input."""
    assert not check(f"f = {source}\n")
    assert check(f"f = {source[:-1]}, in_axes=(0, None))\n")


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
