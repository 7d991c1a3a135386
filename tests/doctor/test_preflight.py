"""What is said of a run before its first step, against numbers from pencil and paper."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import paceline
from paceline.data.example import read_example
from paceline.doctor import memory as memory_module
from paceline.doctor.finding import Finding
from paceline.doctor.memory import StepMemory, device_memory, judge_memory
from paceline.doctor.preflight import preflight
from paceline.doctor.subject import Subject, abstract_program
from paceline.engine.parallel import Parallel
from paceline.topology import devices as devices_module

ORDER = ["batch", "shapes", "keys", "memory", "drift"]
KEY = jax.random.key(7)


def data(rows: int = 40, *, features: int = 3) -> dict[str, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(rows, features)).astype(np.float32)
    return {"x": x, "y": x.sum(-1)}


def loss(params: Any, batch: Any) -> Any:
    return (batch["x"] @ params["w"] - batch["y"]) ** 2


def init(features: int = 3) -> Any:
    return lambda rng: {"w": jnp.zeros(features)}


def subject(function: Any = loss, *, rows: Any = None, batch: int = 8, devices: int = 4, **options: Any) -> Subject:
    names = ("scheme", "accumulation", "dropout", "precision", "placement")
    parallel = Parallel(**{name: options.pop(name) for name in names if name in options})
    task = paceline.task(function, init=options.pop("init", init()))
    return Subject(
        task, options.pop("optimizer", optax.sgd(0.1)), data() if rows is None else rows, batch, parallel, devices,
        **options,
    )  # fmt: skip


def of(found: list[Finding], check: str) -> list[Finding]:
    return [finding for finding in found if finding.check == check]


def text(found: list[Finding], check: str) -> str:
    return "\n".join(line for finding in of(found, check) for line in finding.lines())


@pytest.mark.parametrize("scheme", ["global_view", "per_device", "pmap"])
def test_a_sound_run_is_ok_in_every_check_in_order(scheme):
    """8 rows on 4 devices, 40 rows: every line ok; batch, shapes, keys, memory, drift."""
    found = preflight(subject(scheme=scheme))
    assert {finding.level for finding in found} == {"ok"}, [finding.lines() for finding in found]
    assert list(dict.fromkeys(finding.check for finding in found)) == ORDER
    assert "8 rows = 4 devices x 2 rows" in text(found, "batch")
    assert "40 rows: 5 updates an epoch" in text(found, "batch")
    assert "batch leaf 'x': float32[8, 3], [2, 3] a device (24 B)" in text(found, "shapes")
    assert "1 parameter leaf, 3 parameters, 12 B" in text(found, "shapes")
    assert "draws no random numbers" in text(found, "keys")


def test_a_batch_leaf_that_does_not_split_is_named_with_the_sizes_that_do():
    """Case openpi#607: a ready batch (19, 10, 32) on 4 devices: leaf, 19, 4, 16 and 20; later checks are listed."""
    batches = paceline.stream([{"state": np.zeros((19, 10, 32), np.float32)}])
    found = preflight(subject(rows=batches))
    (wrong,) = [finding for finding in found if finding.level == "error"]
    assert wrong.check == "batch" and "'state'" in wrong.what and "19 rows" in wrong.what and "4 devices" in wrong.what
    assert wrong.fix is not None and "batches of 16 or 20 rows" in wrong.fix
    assert "--batch" not in wrong.fix  # ready batches come as they are
    assert [finding.check for finding in found if finding.what.startswith("not run: ")] == ["keys", "memory", "drift"]


def test_ready_batches_are_padded_as_a_run_pads_them():
    """10 rows on 4 devices: 12 with padding, 3 a device; a loss that is a scalar cannot leave the 2 out."""
    batches = [data(10)] * 3
    found = preflight(subject(rows=paceline.stream(batches), remainder="pad"))
    assert not [finding.lines() for finding in found if finding.level != "ok"]
    assert "10 rows, padded to 12 = 4 devices x 3 rows" in text(found, "batch")
    scalar = preflight(subject(lambda p, b: loss(p, b).mean(), rows=paceline.stream(batches), remainder="pad"))
    (wrong,) = [finding for finding in scalar if finding.level == "error"]
    assert "2 padding rows" in wrong.what and "one value a row" in (wrong.fix or "")


def test_rows_in_a_batch_that_does_not_split_name_a_leaf_too():
    """The same through --batch 19 of a source of rows."""
    (wrong,) = [f for f in preflight(subject(rows={"state": np.zeros((64, 10, 32))}, batch=19)) if f.level == "error"]
    assert "batch leaf 'state' would be [19, 10, 32]" in wrong.what and "16 or 20" in (wrong.fix or "")


def test_fewer_rows_than_devices_are_an_error():
    """Case diffusers#1088: 4 rows on 8 devices; the fix is 8."""
    (wrong,) = [finding for finding in preflight(subject(batch=4, devices=8)) if finding.level == "error"]
    assert "4 rows" in wrong.what and "8 devices" in wrong.what and "--batch 8" in (wrong.fix or "")


def test_microbatches_and_dropped_rows_are_counted():
    """24 rows on 4 devices in 2 microbatches: 6 a device, 3 a microbatch; 40 rows leave 16, which is many."""
    found = of(preflight(subject(batch=24, accumulation=2)), "batch")
    assert "24 rows = 4 devices x 6 rows, in 2 microbatches of 3 rows" in found[0].what
    assert found[1].level == "warning" and "16 rows dropped (40 %)" in found[1].what
    assert found[1].fix is not None and "--remainder pad" in found[1].fix


def test_padding_is_counted_and_refused_where_it_cannot_be_masked():
    """12 rows padded to 16 on 8 devices; 40 rows take 4 steps, so 24 rows of padding. A scalar loss holds them."""
    found = preflight(subject(batch=12, devices=8, remainder="pad"))
    assert "12 rows, padded to 16" in text(found, "batch") and "24 padding rows" in text(found, "batch")
    assert not [finding for finding in found if finding.level == "error"]
    scalar = preflight(subject(lambda p, b: loss(p, b).mean(), batch=12, devices=8, remainder="pad"))
    (wrong,) = [finding for finding in scalar if finding.level == "error"]
    assert "24 padding rows" in wrong.what and "one value a row" in (wrong.fix or "")


def test_the_learning_rate_is_told_for_the_batch_and_for_a_device():
    """From 0.1 to 0.4 for 32 rows; for the 8 rows of one of 4 devices that is 0.1 by linear scaling."""
    schedule = paceline.scaled_learning_rate(base_rate=0.1, base_batch=8, batch=32, warmup_steps=5)
    found = preflight(subject(batch=32, schedule=schedule, steps=20))
    assert "learning rate 0.1 at the first update, 0.4 at its peak, for 32 rows" in text(found, "batch")
    assert "0.1 for the 8 rows of one device" in text(found, "batch")


def test_a_schedule_in_plain_python_is_read_and_one_that_is_not_finite_refused():
    """An if on the update does not trace; 1/0 at the start is an error."""
    found = preflight(subject(schedule=lambda update: 0.5 if int(update) < 3 else 0.1, steps=10))
    assert "learning rate 0.5 at the first update" in text(found, "batch")
    bad = of(preflight(subject(schedule=lambda update: 1.0 / jnp.asarray(update, jnp.float32), steps=10)), "batch")
    assert bad[-1].level == "error" and "not finite" in bad[-1].what


def test_an_unknown_learning_rate_is_said_to_be_unknown():
    assert "learning rate: unknown" in text(preflight(subject()), "batch")


def test_types_that_change_on_the_way_are_told():
    """float64 becomes float32 and int64 int32; an integer that does not fit is an error."""
    rows = data() | {"number": np.arange(40)}
    rows["x"] = rows["x"].astype(np.float64)
    found = preflight(subject(rows=rows))
    assert "'x': float64[8, 3], float32 on the devices" in text(found, "shapes")
    assert "'number': int64[8], int32 on the devices" in text(found, "shapes")
    (wrong,) = [f for f in preflight(subject(rows=data() | {"number": np.arange(40) + 2**40})) if f.level == "error"]
    assert wrong.check == "shapes" and "'number'" in wrong.what


def test_a_device_axis_that_was_put_on_by_hand_is_seen():
    """Leaves (4, 10, 3) and (4, 10) for 4 devices: taken for 4 rows, with the reshape that removes it."""
    rows = {name: leaf.reshape(4, 10, *leaf.shape[1:]) for name, leaf in data().items()}
    found = [f for f in preflight(subject(rows=rows, batch=4)) if "device axis" in f.what]
    assert found[0].level == "warning" and "[4, 10]" in found[0].what
    assert "leaf.reshape(-1, *leaf.shape[2:])" in (found[0].fix or "")


def test_a_scalar_leaf_and_data_without_rows_are_errors():
    """Named, with a fix; what cannot run is listed."""
    found = preflight(subject(rows=paceline.stream([data(8) | {"scale": np.float32(2)}])))
    assert found[0].level == "error" and "'scale'" in found[0].what
    assert [finding.check for finding in found if finding.what.startswith("not run: ")][-3:] == ORDER[2:]
    empty = preflight(subject(rows=paceline.stream([])))
    assert empty[0].level == "error" and "no batch" in empty[0].what


def test_parameters_that_are_no_floats_are_an_error():
    found = preflight(subject(init=lambda rng: {"w": jnp.zeros(3, jnp.int32)}))
    (wrong,) = [finding for finding in found if finding.level == "error"]
    assert wrong.check == "shapes" and "'w'" in wrong.what


def broken(params: Any, batch: Any) -> Any:
    return batch["x"] @ params["v"]


def test_a_task_that_does_not_trace_is_an_error_with_its_line():
    """File and line of the loss; keys, memory and drift are listed as not run, with the reason."""
    found = preflight(subject(broken))
    (wrong,) = [finding for finding in found if finding.level == "error"]
    assert wrong.check == "shapes" and "KeyError" in wrong.what
    assert wrong.file == __file__ and wrong.line == broken.__code__.co_firstlineno + 1
    left = [finding for finding in found if finding.what.startswith("not run: ")]
    assert [finding.check for finding in left] == ["keys", "memory", "drift"]


def test_an_optimizer_that_raises_is_a_finding_and_no_traceback():
    """One that wants more than a step gives: lbfgs with a line search. Told once; memory and drift are not run."""
    found = preflight(subject(dropout, optimizer=optax.lbfgs(1e-2)))
    (wrong,) = [finding for finding in found if finding.level == "error"]
    assert wrong.check == "shapes" and "the optimizer" in wrong.what and wrong.fix
    left = [finding for finding in found if finding.what.startswith("not run: ")]
    assert [finding.check for finding in left] == ["memory", "drift"]
    assert "1 draw a step" in text(found, "keys")


def test_a_running_variance_that_is_not_declared_is_told_once():
    def normalised(params: Any, model_state: Any, batch: Any, rng: Any) -> Any:
        return paceline.Outcome(loss(params, batch), {}, {"var": 0.9 * model_state["var"] + 0.1 * batch["x"].var(0)})

    made = paceline.Initial({"w": jnp.zeros(3)}, {"var": jnp.ones(3)})
    found = preflight(subject(normalised, init=lambda rng: made, scheme="per_device"))
    (wrong,) = [finding for finding in found if finding.level == "error"]
    assert "'var'" in wrong.what and "running variance" in wrong.what


def test_an_axis_that_is_not_there_is_an_error():
    """The axis that the task names and the one that there is."""
    found = preflight(subject(lambda p, b: jax.lax.pmean(loss(p, b), "devices")))
    (wrong,) = [finding for finding in found if finding.level == "error"]
    assert "'devices'" in wrong.what and "'data'" in wrong.what


def dropout(params: Any, batch: Any, rng: Any) -> Any:
    keep = jax.random.bernoulli(rng, 0.5, batch["x"].shape)
    return ((batch["x"] * keep) @ params["w"] - batch["y"]) ** 2


def shared(params: Any, batch: Any, rng: Any) -> Any:
    return dropout(params, batch, rng) + jax.random.normal(rng, batch["y"].shape)


def constant(params: Any, batch: Any, rng: Any) -> Any:
    return dropout(params, batch, KEY)


def test_keys_that_two_draws_share_or_that_never_change_are_warnings():
    """Each with the line of the draw; a key of its own is ok, and the stream is told."""
    assert "1 draw a step from keys of their own: those of one device" in text(preflight(subject(dropout)), "keys")
    streams = preflight(subject(dropout, scheme="per_device", dropout="shared"))
    assert "the same on every device, as asked for" in text(streams, "keys")
    (twice,) = of(preflight(subject(shared)), "keys")
    assert twice.level == "warning" and "one key" in twice.what and "split" in (twice.fix or "")
    (never,) = of(preflight(subject(constant)), "keys")
    assert never.level == "warning" and "every step draws the same" in never.what
    assert never.file == __file__ and never.line == dropout.__code__.co_firstlineno + 1


def test_drift_is_an_error_that_names_the_leaf():
    """An optimizer that scales by the device's index: params.w differs after a step, and training would refuse it."""
    uneven = optax.chain(
        optax.stateless(lambda updates, _: jax.tree.map(lambda u: u * jax.lax.axis_index("data"), updates)),
        optax.sgd(0.1),
    )
    (wrong,) = of(preflight(subject(scheme="per_device", optimizer=uneven)), "drift")
    assert wrong.level == "error" and "params.w" in wrong.what
    assert "pmean" in (wrong.fix or "")


def test_memory_is_that_of_the_compiled_step():
    """Adam on 1000 x 1000 float32, 64 rows on 4 devices: state 12 MB and 16 x 1000 x 4 B of rows a device, to 1 %."""
    rows = {"x": np.zeros((64, 1000), np.float32)}
    big = subject(
        lambda p, b: ((b["x"] @ p["w"]) ** 2).sum(-1), rows=rows, batch=64, optimizer=optax.adam(1e-3),
        init=lambda rng: {"w": jnp.zeros((1000, 1000))}, prefetch=2,
    )  # fmt: skip
    program = abstract_program(big, read_example(big.data), rows=64)
    found = memory_module.step_memory(
        program.step.compiled(program.state, program.batch, program.valid).program, waiting=128_000
    )
    assert found is not None
    assert found.arguments == pytest.approx(12e6 + 64_000, rel=0.01)
    assert found.temporaries > 4e6  # at least a gradient
    assert found.outputs < 10_000  # the next state takes the memory of the state
    assert found.peak == found.arguments + found.outputs + found.temporaries + 128_000
    assert "12.1 MB arguments" in text(preflight(big), "memory")


@pytest.mark.parametrize(("limit", "level"), [(1112, "ok"), (1110, "warning"), (1000, "warning"), (999, "error")])
def test_memory_is_judged_against_the_device(limit, level):
    """1000 B: ok to 90 % of the limit, an error above 100 %."""
    chosen = subject(batch=32)
    program = abstract_program(chosen, read_example(chosen.data), rows=32)
    found = judge_memory(chosen, program, memory=StepMemory(100, 50, 800, 50), limit=limit)
    assert found.level == level
    assert (found.fix is None) == (level == "ok")


def test_the_ways_out_of_too_little_memory_come_in_order():
    """800 B of temporaries for 8 rows a device: 2 microbatches take 400, so 600 B fit 700; then the other ways."""
    chosen = subject(batch=32, rows=data(features=4), init=init(4), optimizer=optax.adam(0.1))
    program = abstract_program(chosen, read_example(chosen.data), rows=32)
    fix = judge_memory(chosen, program, memory=StepMemory(100, 50, 800, 50), limit=700).fix or ""
    ways = ["--accumulation 2", "--placement zero1", "--placement fsdp", "--precision bfloat16", "smaller --batch"]
    places = [fix.index(way) for way in ways]
    assert places == sorted(places)
    assert "about 976 B a device" in fix  # zero1: of 32 B of moments a device keeps 8, so 1000 - 24
    assert "about 964 B a device" in fix  # fsdp: of 16 B of parameters 4 more
    tight = judge_memory(chosen, program, memory=StepMemory(100, 50, 800, 50), limit=350).fix or ""
    assert "--accumulation 8" in tight  # 200 + 800 / 8 = 300 <= 0.9 * 350; with 4 it is 400
    hopeless = judge_memory(chosen, program, memory=StepMemory(900, 50, 50, 0), limit=350).fix or ""
    assert not [way for way in ways if f"{way} (" in hopeless] and "--accumulation" not in hopeless
    assert "no option makes it fit" in hopeless and "864 B of state and batch even under --placement fsdp" in hopeless
    halfway = judge_memory(chosen, program, memory=StepMemory(390, 50, 50, 0), limit=360).fix or ""
    assert "--placement fsdp" in halfway and "zero1" not in halfway  # 390 - 24 > 360 >= 390 - 36


def test_a_model_that_no_machine_holds_is_examined_without_being_made():
    """10^12 parameters, 4 TB: an error about memory; the allocation of one of them would have failed."""
    huge = subject(
        lambda p, b: (b["x"] @ p["w"][:3, 0] - b["y"]) ** 2, init=lambda rng: {"w": jnp.zeros((10**6, 10**6))}
    )
    found = preflight(huge)
    (wrong,) = [finding for finding in found if finding.level == "error"]
    assert wrong.check == "memory" and "TB" in wrong.what
    assert "no option makes it fit" in (wrong.fix or "") and "1.0 TB" in (wrong.fix or "")
    assert "1 parameter leaf, 1,000,000,000,000 parameters, 4.0 TB" in text(found, "shapes")


def test_simulated_devices_share_the_memory_of_the_machine(monkeypatch, tmp_path):
    """A quarter each of 4; a limit of the container that is lower counts."""
    four = jax.devices()[:4]
    whole = device_memory(four[:1])
    assert whole is not None and device_memory(four) == whole // 4
    (tmp_path / "memory.max").write_text("4000\n")
    monkeypatch.setattr(devices_module, "_CGROUP_LIMITS", (str(tmp_path / "memory.max"), str(tmp_path / "no")))
    assert device_memory(four) == 1000
    (tmp_path / "memory.max").write_text("max\n")
    assert device_memory(four[:1]) is not None
