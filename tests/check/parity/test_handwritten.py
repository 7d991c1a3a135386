"""Steps as users write them: which argument is what, what comes back, and what is refused."""

from __future__ import annotations

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training.train_state import TrainState
from jax import lax
from jax.sharding import PartitionSpec

import paceline
from paceline.base.errors import AxisNameError, StateError, TaskError
from paceline.check.foreign import made_by_pmap
from paceline.check.parity import causes
from paceline.check.parity.handwritten import HandwrittenStep
from paceline.check.parity.verify import verify
from paceline.tasks.adapters.linen import from_linen

SGD = optax.sgd(0.1, momentum=0.9)
GENERATOR = np.random.default_rng(0)
DATA = {"x": GENERATOR.normal(size=(24, 3)).astype(np.float32), "y": GENERATOR.normal(size=24).astype(np.float32)}
PARAMS = {"w": np.array([0.3, -0.2, 0.1], np.float32)}


def rows_of(params: Any, batch: Any) -> Any:
    return (batch["x"] @ params["w"] - batch["y"]) ** 2


def loss(params: Any, batch: Any) -> Any:
    rows = rows_of(params, batch)
    return rows, {"small": rows < 1}


def verified(step: Any, *, task: Any = None, data: Any = DATA, params: Any = PARAMS, optimizer: Any = SGD, **options):
    return verify(
        task or paceline.task(loss), optimizer, data=data, params=params, step=step, devices=(2,), accumulation=(1,),
        batch=8, updates=2, **options,
    )  # fmt: skip


def updated(params: Any, opt_state: Any, batch: Any) -> Any:
    value, gradients = jax.value_and_grad(lambda params: rows_of(params, batch).mean())(params)
    changes, opt_state = SGD.update(lax.pmean(gradients, "i"), opt_state, params)
    return optax.apply_updates(params, changes), opt_state, lax.pmean(value, "i")


def missing(outcome: Any) -> set[str]:
    """What is listed as not compared, but for the uneven batch."""
    return {skip.what for skip in outcome.skipped} - {"an uneven batch"}


# --- arguments ---


def test_parameters_are_known_by_their_names():
    """Other names for the same, and leaves of the batch."""

    def step(parameters, optimizer_state, batch_stats, data, dropout_rng, count, mask, x): ...

    roles = HandwrittenStep(step).roles({"x": 0, "y": 0})
    assert roles == ["params", "opt_state", "model_state", "batch", "rng", "step", "valid", "x"]
    assert HandwrittenStep(step).takes_mask({"x": 0})


def test_a_leaf_of_the_batch_comes_before_another_meaning_of_its_name():
    """A batch with a leaf `mask`: the step is given that leaf, and no mask of its rows."""

    def step(params, mask): ...

    assert HandwrittenStep(step).roles({"mask": 0}) == ["params", "mask"]
    assert not HandwrittenStep(step).takes_mask({"mask": 0})


def test_an_unknown_parameter_is_named_with_those_that_are_known():
    """The leaves of the batch among them."""

    def step(params, image): ...

    with pytest.raises(TaskError, match="step 'step' has a parameter 'image'") as caught:
        HandwrittenStep(step).roles({"x": 0, "y": 0})
    assert "params, opt_state" in caught.value.fix and "a leaf of the batch (x, y)" in caught.value.fix


def test_a_step_without_a_state_is_refused():
    """Nothing to compare; what it does take is told."""

    def step(batch, rng): ...

    with pytest.raises(TaskError, match=r"takes no state \(batch, rng\)"):
        HandwrittenStep(step).roles({"x": 0})


def test_a_parameter_with_a_default_keeps_it():
    """`rate` is none of the names: the step is called without it."""

    def step(params, opt_state, batch, rate=1.0):
        return updated(params, opt_state, batch)

    assert verified(step).ok


@pytest.mark.parametrize(
    ("make", "expected"),
    [(lambda f: jax.pmap(f, axis_name="i"), True), (jax.jit, False), (lambda f: f, False)],
    ids=["pmap", "jit", "plain"],
)
def test_what_pmap_made_is_told_from_what_jit_made(make, expected):
    """By what they can do."""
    assert made_by_pmap(make(updated)) == expected


def separate(params, opt_state, x, y):
    return updated(params, opt_state, {"x": x, "y": y})


def mapped(params, opt_state, batch):
    """A shard_map of the user's over 2 devices."""
    specs = PartitionSpec(), PartitionSpec(), PartitionSpec("i")
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("i",))
    return jax.shard_map(updated, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False)(
        params, opt_state, batch
    )


RIGHT = {
    "to be mapped": updated,
    "by pmap": jax.pmap(updated, axis_name="i"),
    "leaves of the batch by name": separate,
    "leaves, by pmap": jax.pmap(separate, axis_name="i"),
    "shard_map": mapped,
    "shard_map in jit": jax.jit(mapped),
}


@pytest.mark.parametrize("step", RIGHT.values(), ids=RIGHT)
def test_a_right_step_is_verified_and_what_it_does_not_return_is_listed(step):
    """Equal in both precisions; its metric is not there to compare."""
    outcome = verified(step)
    assert outcome.ok, outcome.lines()
    assert [result.precision for result in outcome.results] == ["float64", "float32"]
    assert missing(outcome) == {"metrics.small"}


# --- states ---


def train_state(params):
    return TrainState.create(apply_fn=None, params=params, tx=SGD)


def with_train_state(state, batch):
    value, gradients = jax.value_and_grad(lambda params: rows_of(params, batch).mean())(state.params)
    small = (rows_of(state.params, batch) < 1).mean()
    metrics = lax.pmean({"loss": value, "small": small}, "i")
    return state.apply_gradients(grads=lax.pmean(gradients, "i")), metrics


def dictionary(params, opt_state):
    return {"params": params, "opt_state": opt_state, "step": jnp.zeros((), jnp.int32)}


def with_dictionary(state, batch):
    params, opt_state, value = updated(state["params"], state["opt_state"], batch)
    return {"params": params, "opt_state": opt_state, "step": state["step"] + 1}, value


STATES = {
    "TrainState": (with_train_state, train_state, set()),
    "a dictionary": (with_dictionary, dictionary, {"metrics.small"}),
}


@pytest.mark.parametrize(("step", "make_state", "left_out"), STATES.values(), ids=STATES)
def test_a_whole_state_is_compared_by_its_parts(step, make_state, left_out):
    """Parameters, optimizer state and the metrics of a dictionary are found by name."""
    outcome = verified(jax.pmap(step, axis_name="i", donate_argnums=0), make_state=make_state)
    assert outcome.ok, outcome.lines()
    assert missing(outcome) == left_out


def test_a_mistake_under_a_whole_state_is_named():
    """Gradients summed over the 2 devices in flax's TrainState."""

    def step(state, batch):
        gradients = jax.grad(lambda params: rows_of(params, batch).mean())(state.params)
        return state.apply_gradients(grads=lax.psum(gradients, "i"))

    outcome = verified(step, make_state=train_state)
    assert [culprit.cause for culprit in outcome.culprits] == [causes.GRADIENT_TIMES_K]


def test_a_whole_state_needs_a_function_that_makes_it():
    """The fix says what it is given and how it is named."""
    with pytest.raises(TaskError, match="takes one argument for its whole state") as caught:
        verified(with_train_state)
    assert "make_state(params, opt_state)" in caught.value.fix and "--state" in caught.value.fix


class Odd(NamedTuple):
    weights: Any
    rest: Any


def test_parameters_under_a_name_of_their_own_prove_nothing():
    """A state whose parameters cannot be found is refused, not verified by its loss."""

    def step(state, batch):
        params, opt_state, value = updated(state.weights, state.rest, batch)
        return Odd(params, opt_state), value

    with pytest.raises(TaskError, match=r"the state of the step 'step' has no params\.w"):
        verified(step, make_state=lambda params, opt_state: Odd(params, opt_state))


def test_a_state_that_is_replicated_already_is_refused():
    """A second device axis would come in front."""

    def make_state(params, opt_state):
        return jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), dictionary(params, opt_state))

    with pytest.raises(StateError, match=r"parameter 'w' in shape \(2, 3\)"):
        verified(jax.pmap(with_dictionary, axis_name="i"), make_state=make_state)


def test_a_function_that_makes_the_state_and_raises_is_named():
    """With the user's words and line."""

    def make_state(params):
        raise ValueError("no optimizer")

    with pytest.raises(TaskError, match="no optimizer") as caught:
        verified(with_train_state, make_state=make_state)
    assert "test_handwritten.py" in caught.value.fix


# --- models with state ---


class Net(nn.Module):
    """BatchNorm insists on float32; the bias in front of it has gradient 0 but for rounding.

    Args:
      axis_name: over which statistics are taken.
    """

    axis_name: str | None = None

    @nn.compact
    def __call__(self, x: Any, train: bool = True) -> Any:
        x = nn.Dense(2)(x)
        return nn.BatchNorm(use_running_average=not train, momentum=0.9, axis_name=self.axis_name)(x).sum(-1)


def net_loss(model: Any, batch: Any) -> Any:
    return (model(batch["x"]) - batch["y"]) ** 2


NET = from_linen(Net(), net_loss, example={name: leaf[:2] for name, leaf in DATA.items()})
ADAM = optax.adam(0.01)


def net_step(*, reduce=lax.pmean, axis_name="i"):
    """Linen's collection by its name as argument: it holds what is under `batch_stats`, as in flax's examples."""

    def step(params, opt_state, batch_stats, batch):
        def local(params):
            variables = {"params": params, "batch_stats": batch_stats}
            out, kept = Net(axis_name).apply(variables, batch["x"], mutable=["batch_stats"])
            return ((out - batch["y"]) ** 2).mean(), kept["batch_stats"]

        (value, kept), gradients = jax.value_and_grad(local, has_aux=True)(params)
        changes, opt_state = ADAM.update(reduce(gradients, "i"), opt_state, params)
        return optax.apply_updates(params, changes), opt_state, lax.pmean(kept, "i"), lax.pmean(value, "i")

    return step


def verified_net(**options):
    return verified(net_step(**options), task=NET, params=None, optimizer=ADAM)


def test_a_model_that_insists_on_float32_is_proven_in_float64():
    """Synced BatchNorm under adam: only the bias, whose gradient of 0 adam divides by its rounding, is off by 1e-10."""
    outcome = verified_net()
    assert outcome.ok, outcome.lines()
    exact = outcome.results[0]
    assert exact.precision == "float64"
    assert exact.worst.value < 1e-10 or exact.worst.leaf.endswith("Dense_0.bias")
    assert missing(outcome) == set()


def test_averaged_variances_of_a_collection_are_named():
    """Statistics of a device's own rows, pmean of them: flax's ImageNet example without cross-replica merge."""
    outcome = verified_net(axis_name=None)
    assert [culprit.cause for culprit in outcome.culprits] == [causes.VARIANCE_AVERAGED]


def test_a_sum_of_gradients_beside_synced_statistics_is_named():
    """Twice too large on 2 devices, told apart from statistics of a device's own."""
    outcome = verified_net(reduce=lax.psum)
    assert [culprit.cause for culprit in outcome.culprits] == [causes.GRADIENT_TIMES_K]


# --- what cannot be run ---


def test_an_axis_that_is_not_there_is_named():
    """pmap over `i`, a reduction over `batch`."""

    def step(params, opt_state, batch):
        return updated(params, lax.pmean(opt_state, "batch"), batch)

    with pytest.raises(AxisNameError, match="'batch'"):
        verified(jax.pmap(step, axis_name="i"))


def test_a_step_over_whole_arrays_is_refused():
    """It names no axis and maps over nothing."""

    def step(params, opt_state, batch):
        changes, opt_state = SGD.update(jax.grad(lambda p: rows_of(p, batch).mean())(params), opt_state, params)
        return optax.apply_updates(params, changes), opt_state

    with pytest.raises(AxisNameError, match="not mapped over devices"):
        verified(step)


def test_a_step_that_raises_is_named_with_its_line():
    """A key that the batch does not have."""

    def step(params, opt_state, batch):
        return updated(params, opt_state, {**batch, "x": batch["image"]})

    with pytest.raises(TaskError, match="KeyError: 'image'") as caught:
        verified(step)
    assert "test_handwritten.py" in caught.value.fix


def test_a_step_that_returns_no_next_state_is_refused():
    """Its loss alone."""

    def step(params, opt_state, batch):
        return updated(params, opt_state, batch)[2]

    with pytest.raises(TaskError, match="structure and shapes of 'params'"):
        verified(step)


def test_a_mesh_of_another_size_is_told():
    """Asked for 4, the step's own mesh has 2: it is run on 2, and said."""
    outcome = verify(
        paceline.task(loss), SGD, data=DATA, params=PARAMS, step=mapped, devices=(4,), accumulation=(1,), batch=8,
        updates=1,
    )  # fmt: skip
    assert [result.devices for result in outcome.results] == [2, 2]
    assert ("K = 4", "the mesh of 'mapped' has 2 devices") in [(skip.what, skip.why) for skip in outcome.skipped]
