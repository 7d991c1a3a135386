"""The parser and the memory traffic: text into instructions, instructions into bytes."""

from __future__ import annotations

import re
import time

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from paceline.insight.hlo.leaves import dotted
from paceline.insight.hlo.program import read_program
from paceline.insight.hlo.shapes import ProgramTextError, Shape, bytes_of, dtype_name, parse_type
from paceline.insight.hlo.text import parse_module
from paceline.insight.timeline import Done, Repeat, Start, Work
from tests.insight.hlo.make_programs import STEPS
from tests.insight.hlo.texts import COMPILERS, array, compiled, stored, stored_text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("f32[8,256]{1,0}", 8192), ("bf16[3]{0:T(256)}", 6), ("pred[7]{0}", 7), ("s4[5]{0:E(4)}", 3), ("f32[]", 4),
        ("f8e4m3fn[16]{0}", 16), ("f4e2m1fn[16]{0}", 8), ("c64[2]{0}", 16), ("token[]", 0), ("u8[0]{0}", 0),
        ("(f32[2]{0}, (s32[], /*index=2*/bf16[4]{0}))", 8 + 4 + 8), ("()", 0), ("f32[<=10]{0}", 40),
    ],
)  # fmt: skip
def test_sizes_of_types_are_those_in_memory(text, size):
    """By pencil; 4-bit types are packed two a byte."""
    assert bytes_of(parse_type(text)) == size


@pytest.mark.parametrize(
    ("spelled", "name"),
    [("bf16", "bfloat16"), ("f8e4m3fn", "float8_e4m3fn"), ("s32", "int32"), ("u8", "uint8"), ("pred", "bool")],
)
def test_dtypes_are_named_as_jax_names_them(spelled, name):
    """Each is the name of a jax dtype."""
    assert dtype_name(spelled) == name
    assert jnp.dtype(name).name == name


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (r"state.params[\'first\'][\'w\']", "params.first.w"), ("state.opt_state[0].trace['w']", "opt_state.0.trace.w"),
        ("batch['x']", "batch.x"), ("valid", "valid"), ("params.layers[3].kernel", "params.layers.3.kernel"),
    ],
)  # fmt: skip
def test_inputs_are_named_as_users_write_them(path, name):
    """The dotted names of `paceline.tasks.tree`, without the word state."""
    assert dotted(path) == name


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("name", STEPS)
def test_every_line_of_a_program_is_read(name, compiler):
    """As many instructions as lines with `` = `` inside of computations, each operand one of them."""
    text = stored_text(name, compiler)
    module = parse_module(text)
    lines = [line for line in text.splitlines() if re.match(r"\s+(ROOT )?%[\w.\-]+ = ", line)]
    assert sum(len(one.instructions) for one in module.computations.values()) == len(lines)
    for computation in module.computations.values():
        for one in computation.instructions:
            if one.opcode not in ("parameter", "constant"):
                assert set(one.operands) <= set(computation.by_name), one


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("name", STEPS)
def test_every_start_has_its_done_behind_it_in_the_same_body(name, compiler):
    """The contract of `insight.timeline`, loops included; the platform is recognised."""

    def check(timeline):
        begun = []
        for event in timeline:
            if isinstance(event, Start):
                begun.append(event.collective.name)
            elif isinstance(event, Done):
                begun.remove(event.name)
            elif isinstance(event, Repeat):
                assert event.times == 4
                check(event.body)
            else:
                assert isinstance(event, Work) and (event.bytes or event.flops) and event.what
        assert not begun

    program = stored(name, compiler)
    check(program.timeline)
    assert program.platform == compiler.split("-")[1]
    assert program.unknown == {} and program.unknown_loops == ()


def test_text_that_is_no_program_is_refused_with_the_way_to_get_one():
    """The fix says how to make the text."""
    with pytest.raises(ProgramTextError) as caught:
        read_program("module @jit_step { func.func public @main() }")
    assert "compile().as_text()" in caught.value.fix
    with pytest.raises(ProgramTextError) as caught:
        read_program("HloModule m\n\nENTRY e {\n  x.1 = f32[2]{0} parameter\n}\n")
    assert "cannot be read" in caught.value.what
    with pytest.raises(ProgramTextError) as caught:
        parse_type("i32")
    assert "0.10 to 0.12" in caught.value.fix


def traffic(body, *, parameters):
    """Bytes of a scheduled program with these lines, its parameters declared before them."""
    lines = [f"  %{name} = {type_} parameter({n})" for n, (name, type_) in enumerate(parameters.items())]
    return read_program("\n".join(["HloModule m, is_scheduled=true", "", "ENTRY %e {", *lines, *body, "}"])).bytes


def test_a_kernel_reads_its_operands_and_writes_its_result():
    """An addition of two arrays of 4 kB, and of one to itself: read once."""
    given = {"x": "f32[1000]{0}", "y": "f32[1000]{0}"}
    assert traffic(["  ROOT %a = f32[1000]{0} add(%x, %y)"], parameters=given) == 3 * 4000
    assert traffic(["  ROOT %a = f32[1000]{0} add(%x, %x)"], parameters=given) == 2 * 4000


def test_what_renames_a_value_costs_nothing():
    """Bitcasts and tuples."""
    body = ["  %b = f32[10,100]{1,0} bitcast(%x)", "  ROOT %t = (f32[10,100]{1,0}) tuple(%b)"]
    assert traffic(body, parameters={"x": "f32[1000]{0}"}) == 0


def test_a_slice_costs_the_slice_and_an_update_in_place_costs_the_update():
    """Of 1 MB: 10 elements out (40 B read, 40 B written), 10 in."""
    given = {"x": "f32[250000]{0}", "u": "f32[10]{0}", "i": "s32[]"}
    out = ["  ROOT %s = f32[10]{0} dynamic-slice(%x, %i), dynamic_slice_sizes={10}"]
    into = ["  ROOT %s = f32[250000]{0} dynamic-update-slice(%x, %u, %i)"]
    assert traffic(out, parameters=given) == 80
    assert traffic(into, parameters=given) == 80


def test_a_fusion_that_slices_and_updates_costs_the_slices():
    """A scan that stacks one row a step: each of 50 steps reads and writes a row of 400 B, not all 20 kB."""

    def function(rows):
        return lax.scan(lambda carry, row: (carry, jnp.exp(row) * 2), 0.0, rows)[1]

    program = compiled(function, array(50, 100))
    (loop,) = [event for event in program.timeline if isinstance(event, Repeat)]
    assert loop.times == 50
    assert sum(event.bytes for event in loop.body if isinstance(event, Work)) < 4 * 400


def test_a_fusion_keeps_what_it_computes_inside():
    """tanh(x) * 2 + x: one kernel, 4 kB in and 4 kB out, where the lowered program has three."""
    program = compiled(lambda x: jnp.tanh(x) * 2 + x, array(1000))
    assert (program.bytes, program.work.kernels) == (8000, 1)


BESIDE = """HloModule m, is_scheduled=true

%update (p0: f32[1000], p1: f32[10], p2: s32[]) -> f32[1000] {
  %p0 = f32[1000]{0} parameter(0)
  %p1 = f32[10]{0} parameter(1)
  %p2 = s32[] parameter(2)
  ROOT %new = f32[1000]{0} dynamic-update-slice(%p0, %p1, %p2)
}

ENTRY %e (x: f32[1000], u: f32[10], i: s32[]) -> f32[1000] {
  %x = f32[1000]{0} parameter(0)
  %u = f32[10]{0} parameter(1)
  %i = s32[] parameter(2)
  %start = ((f32[1000]{0}, f32[10]{0}, s32[]), f32[1000]{0}, u32[]) fusion-start(%x, %u, %i), kind=kLoop, calls=%update
  ROOT %done = f32[1000]{0} fusion-done(%start)
}
"""


def test_a_kernel_that_runs_beside_others_counts_once_where_it_starts():
    """An update of 10 elements in place: 40 B of them and 4 B of place read, 40 B written; its end costs nothing."""
    program = read_program(BESIDE)
    assert (program.bytes, program.work.kernels) == (40 + 4 + 40, 1)


def test_a_large_program_is_read_in_little_time():
    """1.5 MB: under 20 s of processor time with annotations checked (3 s measured); 5 MB take 2 s without."""
    text = stored_text("mlp_per_device", "jax0.12-cuda")
    head, _, rest = text.partition("\n\nENTRY")
    many = [re.sub(r"%([\w.\-]+)", rf"%\1_{n}", head.split("\n", 1)[1]) for n in range(20)]
    start = time.process_time()
    program = read_program("\n".join([head, *many]) + "\n\nENTRY" + rest)
    assert time.process_time() - start < 20
    assert program.gradient_bytes == {"float32": 4 * 76_296}


def test_shapes_say_how_many_elements_they_have():
    """A scalar has one."""
    assert Shape("f32", ()).elements == 1
    assert Shape("f32", (3, 4)).elements == 12
    assert parse_type("f32[2]") == Shape("f32", (2,))


def test_an_optimization_barrier_is_no_kernel():
    """It orders; it moves nothing."""
    program = compiled(lambda x: jax.lax.optimization_barrier(x), array(1000))
    assert program.work.total_flops == 0
    assert program.bytes <= 8000
