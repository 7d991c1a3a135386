"""The line that used a device too early: named only if it calls jax."""

from __future__ import annotations

import runpy
import textwrap

import pytest

SCRIPT = """\
import sys
{imports}
from paceline.topology.early_use import early_use

def helper():
    return jnp.ones(3)

{before}

def main():
    {inside}
    return early_use(sys._getframe())

FOUND = main()
jnp.zeros(2)
"""


def found(tmp_path, *, before="", inside="pass", imports="import jax\nimport jax.numpy as jnp"):
    path = tmp_path / f"train{len(list(tmp_path.iterdir()))}.py"  # lines are cached by file
    path.write_text(SCRIPT.format(before=textwrap.dedent(before), inside=inside, imports=imports))
    place = runpy.run_path(str(path), run_name="__main__")["FOUND"]
    if place is not None:
        assert place.file == str(path)
        assert path.read_text().splitlines()[place.line - 1].strip() == place.code
    return None if place is None else place.code


@pytest.mark.parametrize(
    "line",
    [
        "X = jnp.arange(4.0)",
        "print(len(jax.devices()))",
        "k = jax.random.key(0)",
        "n = [jax.local_device_count() for _ in range(1)]",
    ],
)
def test_a_call_of_jax_is_named(tmp_path, line):
    """Above the call, at the top of the file or in the function that makes it."""
    assert found(tmp_path, before=line) == line
    assert found(tmp_path, inside=line) == line


def test_the_first_of_several_is_named(tmp_path):
    """Moving it shows the next."""
    assert found(tmp_path, before="a = jnp.ones(1)\nb = jnp.ones(2)") == "a = jnp.ones(1)"


def test_names_are_followed_through_imports(tmp_path):
    """`from jax import numpy as n`, `from jax.numpy import ones`."""
    imports = "from jax import numpy as n\nfrom jax.numpy import ones\nimport jax.numpy as jnp"
    assert found(tmp_path, before="x = n.ones(3)", imports=imports) == "x = n.ones(3)"
    assert found(tmp_path, before="x = ones(3)", imports=imports) == "x = ones(3)"


@pytest.mark.parametrize(
    "line",
    [
        "jax.config.update('jax_enable_x64', False)",
        "f = jax.jit(lambda x: jnp.sin(x))",
        "g = jax.grad(lambda x: x ** 2)",
        "s = jax.ShapeDtypeStruct((2,), 'float32')",
        "t = jax.tree.map(abs, {'a': -1})",
        "def other(): return jnp.ones(3)",
        "class Model:\n    def __call__(self): return jnp.ones(3)",
        "x = len('jnp.ones(3)')",
    ],
)
def test_what_uses_no_device_is_not_named(tmp_path, line):
    """Configuration, transformations, shapes, bodies of functions that nobody has called, and text."""
    assert found(tmp_path, before=line) is None


def test_what_comes_after_the_call_is_not_named(tmp_path):
    """The script ends with a use of jax that is in order."""
    assert found(tmp_path) is None


def test_a_caller_without_source_has_no_line():
    """Typed in: nothing to read."""
    from paceline.topology.early_use import early_use

    names: dict = {"early_use": early_use}
    exec("import sys\nimport jax.numpy as jnp\njnp.ones(1)\nplace = early_use(sys._getframe())", names)
    assert names["place"] is None
    assert early_use(None) is None
