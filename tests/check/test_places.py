"""From an equation to the user's line."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import optax

from paceline.check.places import Site, place
from paceline.engine.precision import cast_floats


def equations(function, *arguments):
    return jax.make_jaxpr(function)(*arguments).jaxpr.eqns


def own(x):
    return x * x


def through_library(x):
    return optax.apply_updates({"w": x}, {"w": x})


def line_of(found):
    path, _, line = found.rpartition(":")
    assert Path(path).name == Path(__file__).name
    return int(line)


def test_a_users_own_line_is_told():
    """The line that multiplies."""
    (equation,) = equations(own, 1.0)
    assert line_of(place(Site(equation, None))) == own.__code__.co_firstlineno + 1


def test_of_a_library_function_the_call_is_told():
    """The user's line that calls optax."""
    found = {place(Site(equation, None)) for equation in equations(through_library, 1.0)}
    assert {line_of(each) for each in found} == {through_library.__code__.co_firstlineno + 1}


def test_a_line_of_paceline_is_never_told():
    """Nor is the line that called Paceline: the operand's place is told, or none."""
    (ours,) = equations(lambda x: cast_floats(x, "bfloat16"), jnp.ones(2))
    (users,) = equations(own, 1.0)
    assert place(Site(ours, None)) is None
    assert line_of(place(Site(ours, None, before=Site(users, None)))) == own.__code__.co_firstlineno + 1


def test_inside_of_a_library_call_the_call_is_told():
    """The equations of `jax.random.bernoulli` have no user's frame; the jit that holds them has."""
    (outer,) = equations(lambda key: jax.random.bernoulli(key), jax.random.key(0))
    inner = outer.params["jaxpr"].eqns[0]
    assert place(Site(inner, None)) is None
    assert place(Site(inner, Site(outer, None))) == place(Site(outer, None)) is not None


def test_nothing_has_no_place():
    """None for None."""
    assert place(None) is None
