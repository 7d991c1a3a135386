"""`zero1` and `fsdp`: the mathematics of one device, a Kth of the bytes, and no whole gradient on any wire."""

from __future__ import annotations

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

from paceline.base.errors import SchemeError, StateError
from paceline.engine.parallel import Parallel
from paceline.engine.placement import placement_text, split_dim, split_shardings, state_shardings, summarize_placement
from paceline.engine.reduce import gather_leaves, scatter_gradients
from paceline.engine.state import drop_device_axis, new_state, place_state
from paceline.engine.step import StepFunction
from paceline.tasks.losses import Outcome
from paceline.tasks.task import RunningStatistics
from paceline.tasks.tree import named_leaves
from paceline.topology.mesh import data_mesh
from tests.ends import grid
from tests.engine.helpers import assert_close, lowered_text, place, run, shard_bytes, start, step_of, to_numpy, words

ROWS, INPUTS, HIDDEN, STEPS, SEED = 32, 3, 16, 3, 7
PLACEMENTS = ("zero1", "fsdp")
PLACED = [(scheme, placement) for scheme in ("global_view", "per_device") for placement in PLACEMENTS]
# Of 96 values, those of w, b and v (80) split over 2, 4 and 8 devices; those of odd (15) and scale (1) never do.
SPLIT_VALUES = INPUTS * HIDDEN + HIDDEN + HIDDEN

every_placement = pytest.mark.parametrize("scheme, placement", PLACED)


def loss(params, batch, rng):
    """Two layers with dropout, and leaves of sizes that 2, 4 and 8 do not divide."""
    hidden = jnp.tanh(batch["x"] @ params["w"] + params["b"])
    hidden = jnp.where(jax.random.bernoulli(rng, 0.7, hidden.shape), hidden / 0.7, 0)
    rest = jnp.tanh(batch["x"] @ params["odd"]).sum(-1)
    return (params["scale"] * (hidden @ params["v"]) + rest - batch["y"]) ** 2


def start_params() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(2)
    shapes = {"w": (INPUTS, HIDDEN), "b": (HIDDEN,), "v": (HIDDEN,), "odd": (INPUTS, 5), "scale": ()}
    return {name: draw.normal(size=shape) for name, shape in shapes.items()}


def data(steps: int = STEPS) -> list[dict[str, np.ndarray]]:
    draw = np.random.default_rng(1)
    return [{"x": draw.normal(size=(ROWS, INPUTS)), "y": draw.normal(size=ROWS)} for _ in range(steps)]


def labels(params):
    return {name: "layer" if name in ("w", "odd", "scale") else "other" for name in params}


# In one chain: a norm over all leaves, one of each leaf (lamb), a hyperparameter in the state, states of masked trees.
GRID_OPTIMIZER = optax.chain(
    optax.clip_by_global_norm(1.0),
    optax.multi_transform(
        {"layer": optax.lamb(0.05, weight_decay=0.01), "other": optax.inject_hyperparams(optax.adamw)(0.05)}, labels
    ),
)
OPTIMIZERS = {
    "adamw, clipped": optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.05, weight_decay=0.01)),
    "adafactor": optax.adafactor(0.05, min_dim_size_to_factor=3, momentum=0.9),
    "masked": optax.chain(
        optax.masked(optax.trace(0.9), lambda params: jax.tree.map(lambda leaf: leaf.ndim > 0, params)),
        optax.scale_by_rms(),
        optax.scale(-0.05),
    ),
    "noise from a key in its state": optax.chain(optax.add_noise(0.1, 0.5, 3), optax.sgd(0.05, momentum=0.9)),
}


@functools.cache
def plain_jax(optimizer) -> dict:
    """The three updates as anyone would write them for one device: grad and optax."""

    @jax.jit
    def update(params, opt_state, batch, key):
        gradient = jax.grad(lambda params: loss(params, batch, key).mean())(params)
        updates, opt_state = optimizer.update(gradient, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    with jax.enable_x64(True):
        params = jax.tree.map(jnp.asarray, start_params())
        opt_state = optimizer.init(params)
        for number, batch in enumerate(data()):
            key = jax.random.fold_in(jax.random.key(SEED, impl="threefry2x32"), number)
            params, opt_state = update(params, opt_state, batch, key)
        return jax.tree.map(words, {"params": params, "opt_state": opt_state})


def assert_equals_one_device(optimizer, parallel: Parallel, devices: int) -> None:
    with jax.enable_x64(True):
        step = step_of(loss, optimizer, parallel, devices=devices)
        got = run(step, data(), params=start_params(), seed=SEED)
    wanted = plain_jax(optimizer)
    assert_close({name: got.state[name] for name in wanted}, wanted, tolerance=1e-10)


@every_placement
@pytest.mark.parametrize("devices, parts", grid(((k, n) for k in (2, 4, 8) for n in (1, 4)), both=lambda k, n: k == 4))
def test_three_updates_equal_those_of_one_device(scheme, placement, devices, parts):
    """Params and optimizer state equal plain JAX to 1e-10 (float64), leaves that do not divide and scalars included."""
    parallel = Parallel(scheme, placement=placement, accumulation=parts)
    assert_equals_one_device(GRID_OPTIMIZER, parallel, devices)


@every_placement
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_any_optimizer_of_optax_updates_as_on_one_device(scheme, placement, optimizer):
    """Factored moments, norms, masks and keys in the state: equal to plain JAX to 1e-10 (float64) on four devices."""
    assert_equals_one_device(optimizer, Parallel(scheme, placement=placement), 4)


@pytest.mark.parametrize(
    "shape, devices, dim",
    [
        ((8, 3), 4, 0),
        ((3, 8), 4, 1),
        ((8, 8), 4, 0),
        ((4, 12, 8), 4, 1),
        ((16, 10), 4, 0),
        ((6, 10), 4, None),
        ((7,), 4, None),
        ((), 4, None),
        ((0, 3), 4, None),
        ((8, 3), 1, None),
    ],
)
def test_a_leaf_is_split_along_its_largest_dim_that_divides(shape, devices, dim):
    """The first of equals; a scalar, odd sizes, an empty leaf and a single device leave it whole."""
    assert split_dim(jax.ShapeDtypeStruct(shape, jnp.float32), num_devices=devices) == dim


@pytest.mark.parametrize("dtype, dim", [(jnp.bfloat16, 0), (np.float64, 0), (np.int32, None), (np.bool_, None)])
def test_only_floating_point_leaves_are_split(dtype, dim):
    """Counters, masks and keys stay whole, whatever their size."""
    assert split_dim(jax.ShapeDtypeStruct((8,), dtype), num_devices=4) == dim
    assert split_dim(jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 8)), num_devices=4) is None


ADAM = optax.adam(0.1)


def adam_state(parallel: Parallel, devices: int):
    step = step_of(loss, ADAM, parallel, devices=devices)
    return step, start(step, start_params())


def held_bytes(tree, device: int) -> int:
    """What one device holds of a tree, counted from its shards."""
    return sum(leaf.addressable_shards[device].data.nbytes for leaf in jax.tree.leaves(tree))


@every_placement
@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_the_bytes_a_device_holds_fall_with_the_number_of_devices(scheme, placement, devices):
    """Before and after a step, by pencil: 80 values over K and 16 whole, twice for adam, and 4 bytes of its count."""
    step, state = adam_state(Parallel(scheme, placement=placement, ema_decay=0.9), devices)
    one_tree = 4 * (SPLIT_VALUES // devices + 16)
    params = one_tree if placement == "fsdp" else 4 * (SPLIT_VALUES + 16)
    for _ in range(2):
        for device in range(devices):
            assert held_bytes(state.opt_state, device) == 2 * one_tree + 4
            assert held_bytes(state.ema, device) == one_tree
            assert held_bytes(state.params, device) == params
        state, _ = step(state, *place(step, data(1)[0]))


def test_a_state_of_shapes_gives_the_same_layout():
    """From `eval_shape`, without any array: the shardings that a placed state has."""
    step, state = adam_state(Parallel(placement="fsdp"), 4)
    shapes = jax.eval_shape(lambda: state)
    wanted = state_shardings(shapes, parallel=step.spec.parallel, mesh=step.spec.mesh)
    for (name, leaf), sharding in zip(named_leaves(state), jax.tree.leaves(wanted), strict=True):
        assert leaf.sharding == sharding, name
    assert wanted.params["w"].spec == PartitionSpec(None, "data") and wanted.params["odd"].spec == PartitionSpec()
    assert wanted.opt_state[0].mu["b"].spec == PartitionSpec("data") and wanted.step.spec == PartitionSpec()


@every_placement
def test_a_state_stays_where_it_is_over_a_step_and_is_donated(scheme, placement):
    """Shardings after equal those before; the old parameters and moments are gone, each device's whole leaves agree."""
    step, state = adam_state(Parallel(scheme, placement=placement), 4)
    after, _ = step(state, *place(step, data(1)[0]))
    assert state.params["w"].is_deleted() and state.opt_state[0].mu["w"].is_deleted()
    for (name, old), (_, new) in zip(named_leaves(state), named_leaves(after), strict=True):
        assert old.sharding.is_equivalent_to(new.sharding, old.ndim), name
        if new.sharding.is_fully_replicated:
            assert len(set(shard_bytes(new))) == 1, name


COLLECTIVE = re.compile(r"= (.*?) (all-reduce|reduce-scatter|all-gather|all-to-all|collective-permute)(?:-start)?\(")


def collectives(step: StepFunction) -> dict[str, list[int]]:
    """Values in each result array of each kind of collective of the compiled program, sorted."""
    text = step.compiled(start(step, start_params()), *place(step, data(1)[0])).program.as_text()
    found: dict[str, list[int]] = {}
    for result, kind in COLLECTIVE.findall(text):
        shapes = re.findall(r"[a-z]+\d+\[([\d,]*)\]", result)
        found.setdefault(kind, []).extend(math.prod(int(size) for size in shape.split(",") if size) for shape in shapes)
    return {kind: sorted(sizes) for kind, sizes in found.items()}


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("parts", [1, 4])
def test_per_device_scatters_each_gradient_once_and_gathers_each_parameter_once(placement, parts):
    """Four devices: quarters of w, b and v come out of reduce-scatters, w, b and v out of gathers, whatever n.

    All-reduces carry `odd` (15 values), `scale` and small sums only.
    """
    found = collectives(step_of(loss, ADAM, Parallel("per_device", placement=placement, accumulation=parts), devices=4))
    assert found["reduce-scatter"] == [HIDDEN // 4, HIDDEN // 4, INPUTS * HIDDEN // 4]
    assert found["all-gather"] == [HIDDEN, HIDDEN, INPUTS * HIDDEN]
    assert max(found["all-reduce"]) == INPUTS * 5 and found.keys() == {"reduce-scatter", "all-gather", "all-reduce"}


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_global_view_gathers_each_parameter_once_and_moves_no_row(placement):
    """Four devices. Gradients are reduced and sliced on a CPU; the GPU compiler makes reduce-scatters of that."""
    found = collectives(step_of(loss, ADAM, Parallel("global_view", placement=placement), devices=4))
    assert found["all-gather"] == [HIDDEN, HIDDEN, INPUTS * HIDDEN]
    assert found.keys() == {"all-gather", "all-reduce"}


@every_placement
def test_the_update_is_asked_for_on_parts(scheme, placement):
    """Before the compiler: gradients, parameters and new parameters constrained, 3 x 5 leaves; 5 more to gather."""
    text = lowered_text(
        step_of(loss, ADAM, Parallel(scheme, placement=placement), devices=4), data(1)[0], params=start_params()
    )
    gathered = 5 if (scheme, placement) == ("global_view", "fsdp") else 0
    assert len(re.findall(r"sdy\.sharding_constraint|@Sharding\(", text)) == 15 + gathered
    assert text.count("optimization_barrier") == gathered


def test_without_placement_nothing_is_gathered_or_scattered():
    """The check above can fail: `replicated` holds all-reduces alone, of whole gradients."""
    for scheme in ("global_view", "per_device"):
        found = collectives(step_of(loss, ADAM, Parallel(scheme), devices=4))
        assert found.keys() == {"all-reduce"} and max(found["all-reduce"]) == INPUTS * HIDDEN


@every_placement
def test_on_one_device_placement_changes_nothing(scheme, placement):
    """The program before the compiler, letter for letter."""
    texts = {
        lowered_text(step_of(loss, ADAM, Parallel(scheme, placement=kind)), data(1)[0], params=start_params())
        for kind in ("replicated", placement)
    }
    assert len(texts) == 1


def normalised(params, model_state, batch, rng):
    """BatchNorm with running statistics, dropout, and a loss that is NaN where a row's `y` is."""
    x = batch["x"]
    mean, var = x.mean(0), x.var(0)
    kept = {"mean": 0.9 * model_state["mean"] + 0.1 * mean, "var": 0.9 * model_state["var"] + 0.1 * var}
    hidden = jnp.tanh((x - mean) / jnp.sqrt(var + 1e-3) @ params["w"] + params["b"])
    hidden = jnp.where(jax.random.bernoulli(rng, 0.7, hidden.shape), hidden, 0)
    return Outcome(params["scale"] * (hidden @ params["v"] - batch["y"]) ** 2, model_state=kept)


STATISTICS = (RunningStatistics("mean", "var", 0.9),)


@functools.cache
def all_options(scheme: str, placement: str) -> dict:
    options = {"dropout": "per_device"} if scheme == "per_device" else {}
    parallel = Parallel(
        scheme, placement=placement, accumulation=2, clip_norm=0.5, ema_decay=0.9, nonfinite="skip", **options
    )
    batches = data(4)
    batches[1]["y"][9] = np.nan
    with jax.enable_x64(True):
        step = step_of(normalised, ADAM, parallel, devices=4, statistics=STATISTICS)
        model_state = {"mean": np.zeros(INPUTS), "var": np.ones(INPUTS)}
        got = run(step, batches, params=start_params(), model_state=model_state, seed=SEED)
    return {
        "state": got.state,
        "metrics": [{**values, "loss": np.nan_to_num(values["loss"])} for values in got.metrics],
    }


@every_placement
def test_every_other_option_works_as_without_placement(scheme, placement):
    """Accumulation, clipping, moving average, BatchNorm, dropout, a skipped NaN: equal to `replicated` to 1e-10."""
    got, wanted = all_options(scheme, placement), all_options(scheme, "replicated")
    assert got["state"]["skipped"] == 1 and got["state"]["opt_state"][0].count == 3
    for values in got["metrics"] + wanted["metrics"]:
        values["gradient_norm"] = np.nan_to_num(values["gradient_norm"])
    assert_close(got, wanted, tolerance=1e-10)


def steep(params, batch):
    return batch["g"] @ params["p"]


@every_placement
@pytest.mark.parametrize("bad", [np.nan, 3e38])
def test_an_update_that_overflows_float16_is_left_out_on_every_device(scheme, placement, bad):
    """One device's gradient is not finite: parts of params, moments and average unmoved, the scale 2**14 everywhere."""
    step = step_of(steep, ADAM, Parallel(scheme, placement=placement, precision="float16", ema_decay=0.5), devices=4)
    state = start(step, {"p": np.ones(8, np.float32)})
    before = to_numpy(step, state)
    gradients = np.ones((4, 8), np.float32)
    gradients[2, 5] = bad
    state, metrics = step(state, *place(step, {"g": gradients}))
    after = to_numpy(step, state)
    for field in ("params", "opt_state", "ema"):
        assert_close(after[field], before[field], tolerance=0)
    assert shard_bytes(state.loss_scale.scale) == [np.float32(2**14).tobytes()] * 4
    assert after["skipped"] == 1 and metrics.bad_leaves() == ["p"]


def test_a_scatter_gives_each_device_its_part_of_the_sum():
    """Four devices: part d of the numpy sum along the split dim, the whole sum of a leaf that does not divide."""
    mesh = data_mesh(jax.devices()[:4])
    shapes = {"last": (4, 3, 8), "first": (4, 8, 3), "none": (4, 3)}
    whole = {name: np.arange(math.prod(shape), dtype=np.float32).reshape(shape) for name, shape in shapes.items()}
    split = split_shardings(jax.tree.map(lambda leaf: leaf[0], whole), mesh)
    specs = jax.tree.map(lambda sharding: sharding.spec, split)

    def local(tree):
        own = jax.tree.map(lambda leaf: leaf[0], tree)
        parts = scatter_gradients(own, split, axis="data", dtype=None)
        return parts, gather_leaves(parts, split, axis="data")

    mapped = jax.shard_map(
        local, mesh=mesh, in_specs=PartitionSpec("data"), out_specs=(specs, PartitionSpec()), check_vma=False
    )
    parts, gathered = jax.jit(mapped)(whole)
    held = {name: leaf.addressable_shards[1].data.shape for name, leaf in parts.items()}
    assert held == {"last": (3, 2), "first": (2, 3), "none": (3,)}
    for tree in (parts, gathered):
        assert_close(tree, jax.tree.map(lambda leaf: leaf.sum(0), whole), tolerance=0)


def test_scattered_gradients_cross_the_wire_in_the_type_asked_for():
    """`reduce_dtype="bfloat16"`: every reduce-scatter of the program takes bfloat16, and float32 by default."""
    for dtype, wire in ((None, "f32"), ("bfloat16", "bf16")):
        parallel = Parallel("per_device", placement="zero1", reduce_dtype=dtype)
        text = lowered_text(step_of(loss, ADAM, parallel, devices=4), data(1)[0], params=start_params())
        operands = re.findall(r'"stablehlo\.reduce_scatter".*?\}\) : \(tensor<[\dx]*x(\w+)>\)', text, re.DOTALL)
        assert operands == [wire] * 3


def test_gathered_states_are_whole_and_placed_states_are_split_again():
    """`drop_device_axis` then `place_state`: every value as it was, whole on all four devices in between."""
    step, state = adam_state(Parallel(placement="fsdp"), 4)
    where = {"parallel": step.spec.parallel, "mesh": step.spec.mesh}
    single = drop_device_axis(state, **where)
    assert all(leaf.sharding.is_fully_replicated and len(leaf.devices()) == 4 for leaf in jax.tree.leaves(single))
    for leaf, again in zip(jax.tree.leaves(state), jax.tree.leaves(place_state(single, **where)), strict=True):
        assert again.sharding == leaf.sharding
        np.testing.assert_array_equal(words(again), words(leaf))


@pytest.mark.parametrize("placement", ["replicated", *PLACEMENTS])
def test_a_placed_state_shares_no_memory_with_numpy(placement):
    """The host's arrays are filled with 99 after `place_state`: parameters of 64 x 64 (aligned) keep their ones."""
    parallel = Parallel(placement=placement)
    buffer = np.ones(64 * 64 + 16, np.float32)
    skip = -buffer.ctypes.data // 4 % 16
    aligned = buffer[skip : skip + 64 * 64].reshape(64, 64)
    state = new_state(ADAM, parallel, params={"w": jnp.asarray(aligned)}, model_state={}, seed=0)
    state.params["w"] = aligned
    placed = place_state(state, parallel=parallel, mesh=data_mesh(jax.devices()[:4]))
    aligned[...] = 99
    np.testing.assert_array_equal(placed.params["w"], np.ones((64, 64)))


@pytest.mark.parametrize("scheme", ["global_view", "per_device"])
@pytest.mark.parametrize("ours", ["replicated", *PLACEMENTS])
@pytest.mark.parametrize("theirs", ["replicated", *PLACEMENTS])
def test_a_state_of_another_placement_is_refused_before_and_after_compilation(scheme, ours, theirs):
    """The first leaf that differs, its shapes and the way to copy it; the state is not used up; the copy works."""
    if ours == theirs:
        return
    step = StepFunction(step_of(loss, ADAM, Parallel(scheme, placement=ours), devices=4).spec)
    other, state = adam_state(Parallel(scheme, placement=theirs), 4)
    leaf = "params.b" if "fsdp" in (ours, theirs) else "opt_state.0.mu.b"
    for _ in range(2):
        with pytest.raises(StateError) as caught:
            step(state, *place(step, data(1)[0]))
        assert (
            f"{leaf!r} of shape (16,)" in caught.value.what and f"placement={ours!r} on 4 devices" in caught.value.what
        )
        assert "trainer.place(other_trainer.single(state))" in caught.value.fix
        assert not state.params["b"].is_deleted()
        single = drop_device_axis(state, parallel=other.spec.parallel, mesh=other.spec.mesh)
        step(place_state(single, parallel=step.spec.parallel, mesh=step.spec.mesh), *place(step, data(1)[0]))


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_pmap_cannot_share_a_state(placement):
    """Refused with the schemes that can."""
    with pytest.raises(SchemeError) as caught:
        Parallel("pmap", placement=placement)
    assert f"placement={placement!r}" in caught.value.what and "pmap" in caught.value.what
    for scheme in re.findall(r"'(\w+)'", caught.value.fix):
        assert Parallel(scheme, placement=placement).placement == placement


def test_the_summary_counts_what_is_split_and_names_what_is_not():
    """Adam on four devices, by pencil: of 11 leaves 6 are split; 2 x (60 + 4) bytes and a count of 4 stay whole."""
    step, state = adam_state(Parallel(placement="zero1"), 4)
    where = {"parallel": step.spec.parallel, "mesh": step.spec.mesh}
    (field,) = summarize_placement(jax.eval_shape(lambda: state), **where)
    whole = ("0.count", "0.mu.odd", "0.mu.scale", "0.nu.odd", "0.nu.scale")
    assert (field.field, field.leaves, field.replicated, field.replicated_bytes) == ("opt_state", 11, whole, 132)
    assert field.device_bytes == held_bytes(state.opt_state, 0) == 2 * 80 + 132
    text = placement_text([field], placement="zero1", num_devices=4)
    said = "zero1: 6 of 11 leaves of the optimizer state split over 4 devices, 5 replicated (132 B): "
    assert text == said + "0.count, 0.mu.odd, 0.mu.scale, ..."
    assert placement_text([], placement="replicated", num_devices=4) == "replicated"
