"""Which leaves of the next state differ: steps as users write them, and Paceline's own."""

from __future__ import annotations

import functools
import inspect
import re
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec

import paceline
from paceline.base.errors import AxisNameError, ReplicationError, TaskError
from paceline.check.replication import check_step, drifting
from paceline.engine.parallel import Parallel
from paceline.engine.step import StepFunction
from paceline.engine.update import StepSpec
from paceline.tasks.task import RunningStatistics, task
from paceline.topology.mesh import data_mesh
from tests.engine.helpers import place, start
from tests.tasks.adapters.models import LIBRARIES, Net

K = 4
AXIS = "data"
MESH = Mesh(np.asarray(jax.devices()[:K]), (AXIS,))
WHOLE, ROWS = PartitionSpec(), PartitionSpec(AXIS)

STATE = {
    "params": {"w": jnp.ones(3), "b": jnp.zeros(())},
    "momentum": {"w": jnp.zeros(3), "b": jnp.zeros(())},
    "bn": {"mean": jnp.zeros(3)},
}
LOCAL = {"x": jnp.ones((2, 3)), "y": jnp.ones(2)}


def loss(params, batch):
    return jnp.mean((batch["x"] @ params["w"] + params["b"] - batch["y"]) ** 2)


def train(state, batch, *, reduce_gradients=True, reduce_mean=True):
    """SGD with momentum, and the running mean of a BatchNorm."""
    value, gradients = jax.value_and_grad(loss)(state["params"], batch)
    mean = batch["x"].mean(0)
    if reduce_gradients:
        gradients = lax.pmean(gradients, AXIS)
    if reduce_mean:
        mean = lax.pmean(mean, AXIS)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], gradients)
    params = jax.tree.map(lambda p, m: p - 0.1 * m, state["params"], momentum)
    return {"params": params, "momentum": momentum, "bn": {"mean": 0.9 * state["bn"]["mean"] + 0.1 * mean}}, value


STEPS = {
    "everything reduced": (train, []),
    "a BatchNorm mean that is not": (functools.partial(train, reduce_mean=False), ["bn.mean"]),
    "gradients that are not": (
        functools.partial(train, reduce_gradients=False),
        ["momentum.b", "momentum.w", "params.b", "params.w"],
    ),
}


def stack(tree):
    return jax.tree.map(lambda leaf: jnp.stack([leaf] * K), tree)


def rows(tree):
    return jax.tree.map(lambda leaf: jnp.concatenate([leaf] * K), tree)


def mapped(step, *, check_vma=False):
    return jax.shard_map(step, mesh=MESH, in_specs=(WHOLE, ROWS), out_specs=(WHOLE, WHOLE), check_vma=check_vma)


def stacked(step):
    """The step in the classic layout, squeezed and stacked by hand."""

    def local(*arguments):
        return jax.tree.map(lambda leaf: leaf[None], step(*jax.tree.map(lambda leaf: leaf[0], arguments)))

    return jax.shard_map(local, mesh=MESH, in_specs=ROWS, out_specs=ROWS, check_vma=False)


def leaves(found):
    return [drift.leaf for drift in found]


FORMS = {
    "a bare function": lambda step: drifting(step, STATE, LOCAL, axis_name=AXIS),
    "pmap": lambda step: drifting(jax.pmap(step, axis_name=AXIS), stack(STATE), stack(LOCAL)),
    "pmap with donation": lambda step: drifting(
        jax.pmap(step, axis_name=AXIS, donate_argnums=(0,)), stack(STATE), stack(LOCAL)
    ),
    "pmap of a state without device axis": lambda step: drifting(
        jax.pmap(step, axis_name=AXIS, in_axes=(None, 0), out_axes=(None, 0)), STATE, stack(LOCAL)
    ),
    "shard_map": lambda step: drifting(mapped(step), STATE, rows(LOCAL)),
    "jit of shard_map": lambda step: drifting(jax.jit(mapped(step), donate_argnums=0), STATE, rows(LOCAL)),
    "abstract values": lambda step: drifting(mapped(step), *jax.eval_shape(lambda: (STATE, rows(LOCAL)))),
    "shard_map of a state with device axis": lambda step: drifting(stacked(step), stack(STATE), stack(LOCAL)),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize(("step", "expected"), STEPS.values(), ids=STEPS)
def test_leaves_that_would_drift_are_named_however_the_step_is_mapped(form, step, expected):
    """By hand: what is computed from unreduced rows, and nothing else, under the names of the state."""
    assert sorted(leaves(form(step))) == expected


@pytest.fixture(scope="module")
def bytes_differ():
    """Names of the leaves whose copies differ after one step on four devices, for each step of the table."""
    x = np.random.default_rng(0).normal(size=(K, 2, 3)).astype(np.float32)
    names = [name for name, _ in paceline.tasks.tree.named_leaves(STATE)]
    found = {}
    for label, (step, _) in STEPS.items():
        after, _ = jax.pmap(step, axis_name=AXIS)(stack(STATE), {"x": x, "y": x[..., 0]})
        copies = [np.asarray(leaf) for leaf in jax.tree.leaves(after)]
        found[label] = sorted(name for name, leaf in zip(names, copies, strict=True) if (leaf != leaf[0]).any())
    return found


@pytest.mark.parametrize("label", STEPS)
def test_devices_agree_with_what_was_named(label, bytes_differ):
    """Run on four devices, exactly the named leaves come out with different bytes."""
    assert bytes_differ[label] == STEPS[label][1]


def test_the_line_that_makes_the_difference_is_told():
    """The place is the line of the user's step that computes the leaf."""

    def step(state, batch):
        del batch
        return state + lax.axis_index(AXIS)

    (drift,) = drifting(step, jnp.zeros(()), LOCAL)
    path, _, line = drift.where.rpartition(":")
    assert Path(path).name == Path(__file__).name and int(line) == step.__code__.co_firstlineno + 2
    assert str(drift) == f"state ({drift.where})"


def test_the_axis_of_a_function_to_be_mapped_is_found():
    """Whatever its name; more than one are found too."""
    assert leaves(drifting(lambda w, x: w + lax.pmean(x, "batch"), jnp.zeros(()), jnp.ones(()))) == []
    assert leaves(drifting(lambda w, x: w + lax.pmean(x, "batch") * x, jnp.zeros(()), jnp.ones(()))) == ["w"]
    assert leaves(drifting(lambda w, x: w + lax.pmean(lax.pmean(x, "a"), "b"), jnp.zeros(()), jnp.ones(()))) == []
    assert leaves(drifting(lambda w, x: w + lax.pmean(x, "a") + lax.axis_index("b"), jnp.zeros(()), jnp.ones(()))) == [
        "w"
    ]


def test_the_right_form_of_the_gradient_under_shard_map_does_not_drift():
    """pcast to varying, grad, one pmean: with and without JAX's own check, and as a bare function."""

    def step(w, x):
        own = lax.pcast(w, AXIS, to="varying")
        return w - 0.1 * lax.pmean(jax.grad(lambda w: jnp.mean((w * x) ** 2))(own), AXIS), jnp.zeros(())

    w, x = jnp.ones(()), jnp.ones(8)
    assert drifting(mapped(step), w, x) == drifting(mapped(step, check_vma=True), w, x) == drifting(step, w, x) == []


def adam(params, opt_state, batch, *, reduced):
    gradients = jax.grad(loss)(params, batch)
    updates, opt_state = OPTIMIZER.update(lax.pmean(gradients, AXIS) if reduced else gradients, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, lax.pmean(loss(params, batch), AXIS)


OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(0.1, 10)))


@pytest.mark.parametrize("reduced", [True, False])
def test_several_states_are_named_after_their_parameters(reduced):
    """step(params, opt_state, batch) -> (params, opt_state, loss) with optax: counts do not differ, moments do."""
    params = STATE["params"]
    step = jax.pmap(functools.partial(adam, reduced=reduced), axis_name=AXIS)
    found = drifting(step, *stack((params, OPTIMIZER.init(params))), stack(LOCAL), state_argnums=(0, 1))
    names = ["opt_state.1.0.mu.b", "opt_state.1.0.mu.w", "opt_state.1.0.nu.b", "opt_state.1.0.nu.w"]
    assert sorted(leaves(found)) == ([] if reduced else [*names, "params.b", "params.w"])


def test_states_of_one_structure_are_told_apart_by_their_order():
    """Parameters and their moving average: the second that is returned belongs to the second that is taken."""

    def step(params, average, x):
        return lax.pmean(x, AXIS), lax.pmean(x, AXIS), {"w": average["w"] + x}, {"w": params["w"] + lax.pmean(x, AXIS)}

    w = {"w": jnp.zeros(2)}
    assert leaves(drifting(step, w, w, jnp.ones(2), state_argnums=(1, 0))) == ["average.w"]
    assert leaves(drifting(step, w, w, jnp.ones(2), state_argnums=(0, 1))) == ["params.w"]


class Model(NamedTuple):
    params: dict
    rate: float


def test_what_is_no_array_is_taken_as_it_is():
    """A static argument of pmap, a number in the state, and a value that all devices share by in_axes=None."""

    def step(state, x, scale, name):
        assert name == "mean" and isinstance(state.rate, float | jax.Array)
        update = {"mean": lax.pmean(x, AXIS), "own": x}[name]
        return Model({"w": state.params["w"] + scale * update}, state.rate)

    state = Model({"w": jnp.zeros((K, 2))}, 0.1)
    by_pmap = jax.pmap(
        step, axis_name=AXIS, in_axes=(Model({"w": 0}, None), 0, None), out_axes=Model({"w": 0}, None),
        static_broadcasted_argnums=3,
    )  # fmt: skip
    assert drifting(by_pmap, state, jnp.ones((K, 2)), jnp.ones(2), "mean") == []


def test_leaves_that_are_split_are_parts_and_not_copies():
    """Parameters split over the devices and gathered for use: each device updates its own part."""

    def step(w, x):
        gradient = jax.grad(lambda w: jnp.mean(x @ w))(lax.all_gather(w, AXIS, tiled=True))
        return w - lax.psum_scatter(gradient, AXIS, tiled=True)

    split = jax.shard_map(step, mesh=MESH, in_specs=ROWS, out_specs=ROWS, check_vma=False)
    w, x = jnp.ones(K * 2), jnp.ones((K * 3, K * 2))
    assert drifting(split, w, x) == []


def test_a_norm_of_a_split_parameter_that_is_not_reduced_drifts():
    """Clipping by the norm of a device's own part scales what is whole by another factor on each device."""

    def step(state, x):
        norm = jnp.sqrt(jnp.sum(state["part"] ** 2))
        return {"part": state["part"], "whole": state["whole"] / norm + lax.pmean(x.sum(), AXIS)}

    specs = {"part": ROWS, "whole": WHOLE}
    clipped = jax.shard_map(step, mesh=MESH, in_specs=(specs, ROWS), out_specs=specs, check_vma=False)
    state = {"part": jnp.ones(K * 2), "whole": jnp.ones(3)}
    assert leaves(drifting(clipped, state, jnp.ones(K))) == ["whole"]


REFUSED = {
    "no axis at all": (lambda w, x: w + x.sum(), AxisNameError, "no device axis", "axis_name="),
    "an axis that pmap does not have": (
        jax.pmap(lambda w, x: w + lax.pmean(x.sum(), "batch"), axis_name=AXIS, in_axes=(None, 0)),
        AxisNameError,
        "'batch'",
        "axis_name='batch'",
    ),
    "no next state": (lambda w, x: lax.pmean(x, AXIS), TaskError, "structure and shapes of 'w'", "return state, loss"),
    "an error of its own": (lambda w, x: lax.pmean(x, AXIS) @ w, TaskError, "the step raised", Path(__file__).name),
    "a batch without device axis": (
        jax.pmap(lambda w, x: w + lax.pmean(x, AXIS), axis_name=AXIS, in_axes=(None, 0), devices=jax.devices()[:2]),
        TaskError,
        "the step raised",
        "called with in training",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("step", "kind", "what", "fix"), REFUSED.values(), ids=REFUSED)
def test_a_step_that_cannot_be_judged_is_refused(step, kind, what, fix):
    """Never "nothing differs" for what was not looked at."""
    with pytest.raises(kind) as caught:
        drifting(step, jnp.zeros(()), jnp.ones(K))
    assert what in caught.value.what and fix in caught.value.fix


def rotten(axis=AXIS, *, at):
    """An optimizer that adds something of each device's own, at the place named."""

    def init(params):
        return {"noise": jnp.zeros(()), "count": jnp.zeros((), jnp.int32)}

    def update(updates, state, params=None):
        own = lax.axis_index(axis) * 1e-3
        if at == "updates":
            updates = jax.tree.map(lambda leaf: leaf + own, updates)
        if at == "state":
            state = {**state, "noise": own}
        return updates, {**state, "count": state["count"] + 1}

    return optax.GradientTransformation(init, update)


def line_loss(params, batch):
    return (batch["x"] * params["w"] + params["b"] - batch["y"]) ** 2


PARAMS = {"w": np.zeros((), np.float32), "b": np.zeros((), np.float32)}
BATCH = {"x": np.ones(8, np.float32), "y": np.ones(8, np.float32)}


def check(step, batch=BATCH, *, params=PARAMS, model_state=None):
    placed, valid = place(step, batch)
    check_step(step, start(step, params, model_state=model_state), batch=placed, valid=valid)


def step_with(optimizer, *, loss=line_loss, devices=K, **parallel):
    mesh = data_mesh(jax.devices()[:devices])
    made = loss if isinstance(loss, paceline.Task) else task(loss)
    return StepFunction(StepSpec(made, optimizer, Parallel(**parallel), mesh))


LOCAL_SCHEMES = pytest.mark.parametrize("scheme", ["per_device", "pmap"])


@LOCAL_SCHEMES
def test_an_optimizer_with_something_of_each_devices_own_is_refused(scheme):
    """Parameters are named if it is in the updates, its own state if it is there; with the line of the optimizer."""
    with pytest.raises(ReplicationError) as caught:
        check(step_with(rotten(at="updates"), scheme=scheme))
    assert "params.b, params.w" in caught.value.what
    lines, first = inspect.getsourcelines(rotten)
    told = int(re.search(rf"{Path(__file__).name}:(\d+)", caught.value.fix)[1])
    assert first <= told < first + len(lines)
    with pytest.raises(ReplicationError, match=r"opt_state\.noise") as caught:
        check(step_with(rotten(at="state"), scheme=scheme))
    assert "params" not in caught.value.what and "count" not in caught.value.what


@LOCAL_SCHEMES
def test_a_long_list_is_cut(scheme):
    """Five names and the number of the others."""
    params = {f"w{number}": np.zeros((), np.float32) for number in range(8)}

    def summed(params, batch):
        return sum(params.values()) * batch["x"]

    with pytest.raises(ReplicationError, match=r"params\.w4 and 3 more"):
        check(step_with(rotten(at="updates"), loss=summed, scheme=scheme), params=params)


def normalised(params, model_state, batch, rng):
    """A BatchNorm that keeps its statistics, and dropout."""
    x = batch["x"]
    kept = {name: 0.9 * model_state[name] + 0.1 * value for name, value in {"mean": x.mean(), "var": x.var()}.items()}
    x = (x - x.mean()) * jax.random.bernoulli(rng, 0.5, x.shape)
    return paceline.Outcome((x * params["w"] + params["b"]) ** 2, {"x": x}, kept)


SOUND = {
    "plain": {},
    "accumulation": {"accumulation": 2},
    "all of the rest": {"clip_norm": 1.0, "ema_decay": 0.9, "nonfinite": "skip", "reduce_dtype": "bfloat16"},
    "a loss scale": {"precision": "float16"},
    "a mask for each device": {"dropout": "per_device"},
    "one mask": {"dropout": "shared"},
}


@LOCAL_SCHEMES
@pytest.mark.parametrize("options", SOUND.values(), ids=SOUND)
def test_no_step_of_paceline_drifts(scheme, options):
    """Model state, metrics, dropout and every option: all that leaves a step has been reduced."""
    statistics = [RunningStatistics("mean", "var", 0.9)]
    step = step_with(optax.adamw(0.1), loss=task(normalised, statistics=statistics), scheme=scheme, **options)
    check(step, model_state={"mean": jnp.zeros(()), "var": jnp.ones(())})


@pytest.mark.parametrize("placement", ["zero1", "fsdp"])
def test_a_split_state_is_no_drift(placement):
    """Optimizer state and parameters of which each device holds a part."""
    params = {"w": np.zeros((8,), np.float32), "b": np.zeros((), np.float32)}

    def linear(params, batch):
        return (batch["x"] * params["w"].sum() + params["b"]) ** 2

    check(step_with(optax.adamw(0.1), loss=linear, scheme="per_device", placement=placement), params=params)


NET = Net(3, (("first", 4), ("bn", "norm"), ("relu", "relu"), ("dropout", "dropout"), ("last", 1)))


@pytest.mark.parametrize("library", sorted(LIBRARIES))
@pytest.mark.parametrize("batch_norm", ["local", "synced"])
def test_models_with_batch_norm_and_dropout_do_not_drift(library, batch_norm):
    """Flax NNX, Flax Linen and Equinox, through the adapters."""
    example = {"x": jax.ShapeDtypeStruct((2, 3), jnp.float32)}
    made = LIBRARIES[library].task(NET, lambda model, batch: model(batch["x"])[:, 0] ** 2, example)
    params, model_state = jax.jit(made.init)(jax.random.key(0))
    step = step_with(optax.sgd(0.1), loss=made, scheme="per_device", batch_norm=batch_norm)
    check(step, {"x": np.ones((8, 3), np.float32)}, params=params, model_state=model_state)


def test_where_nothing_can_differ_nothing_is_traced():
    """One device, or one program over whole arrays."""
    traced = []

    def counted(params, batch):
        traced.append(1)
        return line_loss(params, batch)

    check(step_with(optax.sgd(0.1), loss=counted, scheme="global_view"))
    check(step_with(optax.sgd(0.1), loss=counted, devices=1, scheme="per_device"))
    assert traced == []


@LOCAL_SCHEMES
def test_the_check_shares_its_trace_with_the_compilation(scheme):
    """The user's loss is traced once for both."""
    traced = []

    def counted(params, batch):
        traced.append(1)
        return line_loss(params, batch)

    spec = step_with(optax.sgd(0.1), loss=counted, scheme=scheme).spec
    step = StepFunction(spec, check=check_step)
    step.compiled(start(step, PARAMS), *place(step, BATCH))
    assert traced == [1]


def test_the_check_is_reached_from_the_package():
    """paceline.check.drifting, loaded when it is asked for; what is not there is an AttributeError."""
    assert paceline.check.drifting is drifting
    with pytest.raises(AttributeError, match="no_such_check"):
        _ = paceline.check.no_such_check
