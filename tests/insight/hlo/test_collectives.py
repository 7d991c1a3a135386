"""Collectives: kind, bytes, type on the wire, group, what they carry, what runs meanwhile."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import paceline
from paceline.engine.parallel import Parallel
from paceline.insight.hlo.groups import parse_groups
from paceline.insight.hlo.program import collective_lines, read_program, step_parameters
from paceline.insight.hlo.text import Module, parse_module
from tests.insight.hlo import make_programs
from tests.insight.hlo.texts import COMPILERS, CUDA, MLP, stored

ELEMENTS = sum(MLP.values())
DEVICES = {"cpu": 4, "cuda": 8}


def devices(compiler):
    """Of a stored program."""
    return DEVICES[compiler.split("-")[1]]


def leaf_bytes(program, *kinds):
    """Bytes of each leaf over all collectives of those kinds, loops counted."""
    total = {}
    for use in program.collectives:
        if use.collective.kind in kinds:
            for name, size in use.leaf_bytes.items():
                total[name] = total.get(name, 0) + use.times * size
    return total


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("name", ["mlp_per_device", "mlp_per_device_accumulating", "mlp_pmap", "mlp_global_view"])
def test_gradients_cross_the_wire_once_as_float32_leaf_by_leaf(name, compiler):
    """M x 4 bytes a step, also when 4 microbatches are accumulated; what is left are two totals of the loss."""
    program = stored(name, compiler)
    assert leaf_bytes(program, "all-reduce") == {leaf: 4 * count for leaf, count in MLP.items()}
    assert program.gradient_bytes == {"float32": 4 * ELEMENTS}
    assert program.wire_bytes_by_dtype == {"float32": 4 * ELEMENTS + 8}
    assert {use.collective.group for use in program.collectives} == {devices(compiler)}
    assert {use.groups for use in program.collectives} == {(tuple(range(devices(compiler))),)}
    assert program.num_partitions == devices(compiler)


@pytest.mark.parametrize("compiler", CUDA)
def test_gradients_cross_the_wire_as_bfloat16_if_asked(compiler):
    """M x 2 bytes a step in a message of their own, asynchronous."""
    program = stored("mlp_per_device_bfloat16", compiler)
    assert program.gradient_bytes == {"bfloat16": 2 * ELEMENTS}
    largest = max(program.collectives, key=lambda use: use.collective.bytes)
    assert largest.collective.bytes == 2 * ELEMENTS
    assert set(largest.collective.leaves) == set(MLP)
    assert not largest.blocking


@pytest.mark.parametrize("compiler", [name for name in COMPILERS if name.endswith("cpu")])
def test_the_type_on_the_wire_is_the_compilers_not_what_was_asked(compiler):
    """XLA's CPU compiler widens a bfloat16 all-reduce to float32 (jax 0.10 and 0.12): that is what is said."""
    assert stored("mlp_per_device_bfloat16", compiler).gradient_bytes == {"float32": 4 * ELEMENTS}


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("name", ["convnet_global_view", "attention_global_view"])
def test_under_global_view_the_type_that_the_compiler_chose_is_reported(name, compiler):
    """Computed in bfloat16: on the GPU reduced before the cast to float32, on the CPU widened. Every leaf once."""
    program = stored(name, compiler)
    params = make_programs.STEPS[name][0]()[1]
    dtype, size = ("bfloat16", 2) if compiler.endswith("cuda") else ("float32", 4)
    assert leaf_bytes(program, "all-reduce") == {f"params.{leaf}": size * one.size for leaf, one in params.items()}
    assert set(program.gradient_bytes) == {dtype}


@pytest.mark.parametrize("compiler", COMPILERS)
def test_batch_statistics_are_no_gradients(compiler):
    """Sums of values and squares of 16 and 32 channels in float32 block the forward pass and carry no leaf."""
    forward = [use for use in stored("convnet_global_view", compiler).collectives if use.collective.dtype == "float32"]
    statistics = [use for use in forward if not use.leaf_bytes and use.collective.bytes in (128, 256)]
    assert len(statistics) == 2 and all(use.blocking for use in statistics if use.collective.bytes == 256)


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("name", ["mlp_zero1", "mlp_fsdp"])
def test_split_states_scatter_gradients_and_gather_parameters(name, compiler):
    """Each leaf once in each direction: a reduce-scatter counts its operand, an all-gather its result, M x 4 both."""
    program = stored(name, compiler)
    expected = {leaf: 4 * count for leaf, count in MLP.items()}
    assert leaf_bytes(program, "reduce-scatter") == expected
    assert leaf_bytes(program, "all-gather") == expected
    sent = {
        kind: sum(use.collective.bytes for use in program.collectives if use.collective.kind == kind)
        for kind in ("reduce-scatter", "all-gather")
    }
    assert sent == {"reduce-scatter": 4 * ELEMENTS, "all-gather": 4 * ELEMENTS}


@pytest.mark.parametrize("compiler", [name for name in COMPILERS if name.endswith("cpu")])
def test_a_collective_inside_a_loop_counts_as_often_as_the_loop_runs(compiler):
    """Under global_view the CPU compiler leaves the reduction among the 4 microbatches; gradients keep their names."""
    program = stored("mlp_global_view_accumulating", compiler)
    assert [use.times for use in program.collectives] == [4]
    assert program.gradient_bytes == {"float32": 4 * 4 * ELEMENTS}


@pytest.fixture(scope="module")
def example():
    """A linear model with a scalar among its leaves: M = 15 + 5 + 1, 16 rows."""
    params = {"w": np.zeros((3, 5), np.float32), "b": np.zeros(5, np.float32), "scale": np.zeros((), np.float32)}
    batch = {"x": np.ones((16, 3), np.float32), "y": np.ones((16, 5), np.float32)}
    return params, batch


def _loss(params, batch):
    return (((batch["x"] @ params["w"] + params["b"]) * params["scale"] - batch["y"]) ** 2).sum(-1)


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("scheme", ["per_device", "pmap"])
def test_a_trainers_program_sends_every_gradient_once(scheme, accumulation, example):
    """Float32, 4 devices: 4 bytes a parameter at n = 1 and n = 4, by name, the scalar leaf among them."""
    params, batch = example
    parallel = Parallel(scheme=scheme, accumulation=accumulation)
    trainer = paceline.Trainer(paceline.task(_loss), optax.sgd(0.1, momentum=0.9), devices=4, parallel=parallel)
    state = trainer.init(params)
    names = step_parameters(state, batch, np.ones(16, bool))
    program = read_program(trainer.compiled(state, batch).as_text(), parameters=names)
    assert leaf_bytes(program, "all-reduce") == {"params.w": 60, "params.b": 20, "params.scale": 4}
    assert program.gradient_bytes == {"float32": 4 * 21}


SHARED = """HloModule step, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, may-alias) }

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

ENTRY %main (p: f32[64], q: f32[64], g: f32[64]) -> (f32[64], f32[64]) {
  %p = f32[64]{0} parameter(0), metadata={op_name="state.params['p']"}
  %q = f32[64]{0} parameter(1), metadata={op_name="state.params['q']"}
  %g = f32[64]{0} parameter(2), metadata={op_name="batch"}
  %reduced = f32[64]{0} all-reduce(%g), replica_groups={{0,1}}, to_apply=%add
  %newp = f32[64]{0} subtract(%p, %reduced)
  %square = f32[64]{0} OPCODE
  %newq = f32[64]{0} subtract(%q, %square)
  ROOT %out = (f32[64]{0}, f32[64]{0}) tuple(%newp, %newq)
}
"""


@pytest.mark.parametrize(
    ("opcode", "leaves"),
    [("negate(%reduced)", {"params.p": 256, "params.q": 0}), ("multiply(%reduced, %q)", {"params.p": 256})],
)
def test_leaves_with_one_gradient_share_its_message_and_what_is_no_gradient_names_no_leaf(opcode, leaves):
    """Sent once, 256 bytes, for two leaves; only the first if the second takes a product with another value."""
    (use,) = read_program(SHARED.replace("OPCODE", opcode)).collectives
    assert use.leaf_bytes == leaves


@pytest.mark.parametrize("name", ["mlp_per_device_bfloat16", "mlp_pmap"])
def test_a_lowered_program_says_what_was_asked_for(name):
    """Before the compiler changes anything: bfloat16 gradients of bfloat16 work, float32 of the rest, by leaf."""
    text = make_programs.lowered(name, jax.devices("cpu")[:4]).as_text(dialect="hlo")
    leaves = [leaf.removeprefix("params.") for leaf in MLP]
    names = ["step", "skipped", "empty", *MLP, *(f"opt_state.0.trace.{leaf}" for leaf in leaves), "rng"]
    program = read_program(text, parameters=[*names, "batch.x", "batch.y", "valid"])
    dtype, size = ("bfloat16", 2) if name.endswith("bfloat16") else ("float32", 4)
    assert program.gradient_bytes == {dtype: size * ELEMENTS}
    assert not program.scheduled


def test_parameters_of_a_step_are_named_in_the_order_of_its_arguments():
    """State, batch, valid, each as `paceline.tasks.tree` names leaves."""
    names = step_parameters({"params": {"w": 1, "layers": [2, 3]}}, {"x": 1}, 1)
    assert names == ["params.layers.0", "params.layers.1", "params.w", "batch.x", "valid"]


ASYNCHRONOUS = """HloModule step, is_scheduled=true, num_partitions=4

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

ENTRY %main (x: f32[8,8], g: f32[64]) -> (f32[8,8], f32[64]) {
  %x = f32[8,8]{1,0} parameter(0), metadata={op_name="batch['x']"}
  %g = f32[64]{0} parameter(1), metadata={op_name="state.params['g']"}
  %before = f32[8,8]{1,0} dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %reduce-start = f32[64]{0} all-reduce-start(%g), channel_id=1, replica_groups=[2,2]<=[4], to_apply=%add{SYNC}
  %one = f32[8,8]{1,0} dot(%before, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %two = f32[8,8]{1,0} tanh(%one)
  %reduce-done = f32[64]{0} all-reduce-done(%reduce-start)
  ROOT %out = (f32[8,8]{1,0}, f32[64]{0}) tuple(%two, %reduce-done)
}
"""


def test_work_between_start_and_done_is_in_flight():
    """One product of [8, 8] by [8, 8] and one tanh: 1,024 operations, 768 + 512 bytes, two kernels."""
    (use,) = read_program(ASYNCHRONOUS.replace("{SYNC}", "")).collectives
    assert not use.blocking
    assert (use.in_flight.total_flops, use.in_flight.bytes, use.in_flight.kernels) == (2 * 8**3, 768 + 512, 2)
    assert use.groups == ((0, 1), (2, 3))


def test_a_pair_that_the_compiler_marks_as_synchronous_blocks():
    """``is_sync`` in its configuration: it runs in its turn, and nothing is in flight."""
    mark = ', backend_config={"collective_backend_config":{"is_sync":true}}'
    (use,) = read_program(ASYNCHRONOUS.replace("{SYNC}", mark)).collectives
    assert use.blocking
    assert use.in_flight.kernels == 0


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{{0,1},{2,3}}", ((0, 1), (2, 3))),
        ("{}", ((0, 1, 2, 3, 4, 5, 6, 7),)),
        ("[2,4]<=[8]", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("[4,2]<=[2,4]T(1,0)", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['data'=8] {'data'}", ((0, 1, 2, 3, 4, 5, 6, 7),)),
        ("mesh['node'=2,'local'=4] {'local'}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("mesh['node'=2,'local'=4] {'node'}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['data'=8] {'data':(2)4}", None),
    ],
)
def test_groups_are_read_in_every_form(text, groups):
    """Lists, all, a transposed count, axes of a mesh; by pencil. A part of an axis is not known, and said so."""
    line = f"  ROOT %r = f32[4]{{0}} all-reduce(%x), channel_id=1, replica_groups={text}, to_apply=%add"
    module = parse_module(
        f"HloModule m, num_partitions=8\n\nENTRY %e {{\n  %x = f32[4]{{0}} parameter(0)\n{line}\n}}\n"
    )
    assert isinstance(module, Module)
    assert parse_groups(module.computations["e"].root, module) == groups


def test_collectives_are_told_in_a_line_each_largest_first():
    """Kind, size, type, group, loop, how it runs, leaves."""
    lines = collective_lines(read_program(ASYNCHRONOUS.replace("{SYNC}", "")))
    how = "asynchronous, 2 kernels (1.02e-06 GFLOP, 1.3 kB) in flight"
    assert lines == [f"all-reduce 256 B float32 over 2 devices, {how}: params.g"]


def test_every_kind_of_collective_is_found_in_a_program_compiled_here():
    """psum, all_gather, psum_scatter, all_to_all, ppermute of 4 devices, 32 float32 each; bytes of the whole value."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    kinds = {
        "all-reduce": (lambda x: jax.lax.psum(x, "data"), 128),
        "all-gather": (lambda x: jax.lax.all_gather(x, "data"), 4 * 128),
        "reduce-scatter": (lambda x: jax.lax.psum_scatter(x, "data", tiled=True), 128),
        "all-to-all": (lambda x: jax.lax.all_to_all(x, "data", 0, 0, tiled=True), 128),
        "collective-permute": (lambda x: jax.lax.ppermute(x, "data", [(i, (i + 1) % 4) for i in range(4)]), 128),
    }
    for kind, (function, size) in kinds.items():
        mapped = functools.partial(jax.shard_map, mesh=mesh, check_vma=False)
        rows = jax.sharding.PartitionSpec("data")
        program = jax.jit(mapped(function, in_specs=rows, out_specs=rows))
        read = read_program(program.lower(jnp.ones(128)).compile().as_text() or "")
        found = [(use.collective.kind, use.collective.bytes, use.collective.group) for use in read.collectives]
        assert found == [(kind, size, 4)]
