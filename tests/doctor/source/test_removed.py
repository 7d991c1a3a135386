"""JAX names and arguments that are gone: line and replacement, and no alarm for code that still works."""

from __future__ import annotations

import importlib
import inspect
import warnings

import pytest

from paceline.doctor.source.names import ARGUMENTS, CHANGES
from paceline.doctor.source.removed import PORTING
from tests.doctor.source.reading import only, troubles, write


@pytest.mark.parametrize("name", CHANGES)
def test_the_table_agrees_with_the_installed_jax(name):
    """A name that is called removed cannot be had; one that is called deprecated can, with a warning. Any version."""
    module, _, attribute = name.rpartition(".")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            value = getattr(importlib.import_module(module), attribute, None)
            there = value is not None
            if callable(value) and not told:  # an alias that warns when it is called
                value()
        except ImportError:
            there = False
        if not there:
            try:
                importlib.import_module(name)
                there = True
            except ImportError:
                pass
    assert there != CHANGES[name].removed
    if there:
        assert told, f"{name} works without a warning"


SPELLINGS = {
    "attribute": ("import jax\n\nstate = jax.device_put_replicated(state, devices)\n", 3),
    "alias of the module": ("import jax as j\nstate = j.device_put_replicated(state, devices)\n", 2),
    "from import": ("from jax import device_put_replicated\n", 1),
    "from import with a new name": ("import os\nfrom jax import device_put_replicated as put\n", 2),
    "a name for it": ("import jax\nput = jax.device_put_replicated\n", 2),
    "in a function": ("import jax\ndef f(x):\n    return jax.device_put_replicated(x, [])\n", 3),
}


@pytest.mark.parametrize(("source", "line"), SPELLINGS.values(), ids=SPELLINGS)
def test_a_removed_name_is_found_however_it_is_spelled(tmp_path, source, line):
    """Error with file, line and the code to write instead."""
    found = only(troubles(write(tmp_path, source)))
    assert (found.level, found.line) == ("error", line)
    assert found.file is not None and found.file.endswith("step.py")
    assert "jax.device_put_replicated" in found.what
    assert found.fix is not None and "jax.device_put(x" in found.fix and "jnp.stack" in found.fix


def test_each_line_of_a_name_is_told_once(tmp_path):
    """Three uses: one finding at the first, the others named."""
    found = only(
        troubles(
            write(tmp_path, "import jax\na = jax.tree_map(f, x)\nb = jax.tree_map(f, a)\n\nc = jax.tree_map(f, b)\n")
        )
    )
    assert found.line == 2 and "3, 5" in found.what and found.fix == "use jax.tree.map"


@pytest.mark.parametrize(
    ("source", "name", "replacement"),
    [
        ("import jax\nx = jax.device_put_sharded(shards, devices)\n", "device_put_sharded", "np.stack(shards)"),
        ("from jax.experimental.maps import xmap\n", "jax.experimental.maps", "jax.shard_map"),
        ("from jax.experimental.maps import Mesh\n", "jax.experimental.maps.Mesh", "jax.sharding.Mesh"),
        ("from jax import lax\ny = lax.pvary(x, 'data')\n", "jax.lax.pvary", "jax.lax.pcast(x, axis_name"),
        ("import jax\nx = jax.core.get_aval(y)\n", "jax.core.get_aval", "jax.typeof"),
        ("import jax\nv = jax.typeof(x).vma\n", ".vma", "jax.typeof(x).manual_axis_type.varying"),
        ("import jax\nt = jax.typeof(x)\nv = t.vma\n", ".vma", "t.manual_axis_type.varying"),
    ],
)
def test_the_replacement_of_a_name_is_code(tmp_path, source, name, replacement):
    """What is gone is named, and what to write instead."""
    found = next(finding for finding in troubles(write(tmp_path, source)) if finding.level == "error")
    assert name in found.what
    assert found.fix is not None and replacement in found.fix


@pytest.mark.parametrize(
    ("source", "what", "fix"),
    [
        ("from jax.config import config\n", "jax.config.config is gone", "import jax"),
        ("from jax.interpreters.pxla import Mesh\n", "jax.interpreters.pxla.Mesh is gone", "jax.sharding.Mesh"),
        ("import jax.numpy as jnp\ny = jnp.clip(x, a_min=0)\n", "jax.numpy.clip no longer takes a_min=", "min="),
        ("import jax.numpy as jnp\ny = jnp.clip(x, 0, a_max=1)\n", "jax.numpy.clip no longer takes a_max=", "max="),
        ("import jax\nf = jax.pmap(g, global_arg_shapes=s)\n", "takes global_arg_shapes=", "jax.jit"),
        (
            "from functools import partial\nfrom jax import pmap\nf = partial(pmap, global_arg_shapes=s)\n",
            "pmap",
            "jit",
        ),
    ],
)
def test_what_older_code_imports_and_passes_is_an_error(tmp_path, source, what, fix):
    found = only(troubles(write(tmp_path, source)))
    assert found.level == "error" and what in found.what and fix in (found.fix or "")


@pytest.mark.parametrize(("function", "gone"), [(name, gone) for name, all in ARGUMENTS.items() for gone in all])
def test_the_arguments_of_the_table_are_gone_from_the_installed_jax(function, gone):
    module, _, name = function.rpartition(".")
    assert gone not in inspect.signature(getattr(importlib.import_module(module), name)).parameters


OLD = """\
from jax.experimental.shard_map import shard_map
f = shard_map(g, mesh, in_specs=s, out_specs=s, check_rep=False,
              auto=frozenset(mesh.axis_names) - {"data"})
"""


def test_arguments_of_the_experimental_shard_map_are_ported(tmp_path):
    """Case flax#5058: auto=, check_rep= and the module, each with its new spelling, and the warning about gradients."""
    found = troubles(write(tmp_path, OLD))
    assert [(finding.level, finding.line) for finding in found] == [
        ("warning", 1), ("warning", 1), ("warning", 2), ("error", 3),
    ]  # fmt: skip
    fixes = [finding.fix or "" for finding in found]
    assert "jax.shard_map(f, mesh=mesh" in fixes[0]
    assert PORTING in found[1].what and "K times the gradient, psum K^2" in found[1].what
    assert 'jax.lax.pcast(params, "data", to="varying")' in fixes[1]
    assert "check_vma=False" in fixes[2]
    assert "axis_names={'data'}" in fixes[3]


def test_auto_axes_are_turned_into_the_others(tmp_path):
    """auto={'model'} names what is automatic; axis_names names the rest."""
    source = "import jax\nf = jax.shard_map(g, mesh=mesh, in_specs=s, out_specs=s, auto={'model'})\n"
    found = next(finding for finding in troubles(write(tmp_path, source)) if finding.level == "error")
    assert found.fix is not None and "axis_names=set(mesh.axis_names) - {'model'}" in found.fix


def test_check_rep_of_the_new_shard_map_is_an_error(tmp_path):
    """jax.shard_map raises TypeError for it; also through partial."""
    source = """
        import jax
        from functools import partial
        @partial(jax.shard_map, mesh=m, in_specs=s, out_specs=s, check_rep=True)
        def f(x):
            return x
    """
    found = troubles(write(tmp_path, source))
    assert [finding.level for finding in found] == ["error", "warning"]
    assert "no check_rep=" in found[0].what and found[0].fix == "use check_vma=True of jax.shard_map"


def test_positional_mesh_and_specs_are_an_error(tmp_path):
    """jax.shard_map(f, mesh, in_specs, out_specs) raises TypeError."""
    found = troubles(write(tmp_path, "import jax\nf = jax.shard_map(g, mesh, s, s)\n"))
    assert found[0].level == "error" and "keyword only" in found[0].what


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ('jax.config.update("jax_pmap_shmap_merge", False)', "error"),
        ('os.environ["JAX_PMAP_SHMAP_MERGE"] = "0"', "warning"),
        ('os.environ.setdefault("JAX_PMAP_SHMAP_MERGE", "0")', "warning"),
    ],
)
def test_the_old_pmap_escape_is_found(tmp_path, line, level):
    """The option raises, the environment variable is ignored; with each comes the warning about gradients."""
    found = troubles(write(tmp_path, f"import os\nimport jax\n{line}\n"))
    assert [(finding.level, finding.line) for finding in found] == [(level, 3), ("warning", 3)]
    assert PORTING in found[1].what


def test_a_mesh_without_axis_types_is_a_warning(tmp_path):
    """jax.make_mesh defaults to Explicit axes; with axis_types, and with Mesh itself, there is nothing to say."""
    found = only(troubles(write(tmp_path, "import jax\nmesh = jax.make_mesh((4, 2), ('data', 'model'))\n")))
    assert found.level == "warning" and found.fix is not None
    assert "axis_types=(AxisType.Auto, AxisType.Auto)" in found.fix
    assert not troubles(write(tmp_path, "import jax\nm = jax.make_mesh((4,), ('data',), axis_types=(t,))\n"))


FINE = {
    "a fallback for old versions": """
        try:
            from jax import shard_map
        except ImportError:
            from jax.experimental.shard_map import shard_map
        f = shard_map(g, mesh=mesh, in_specs=s, out_specs=s)
    """,
    "a stand-in of their own": """
        try:
            from jax import device_put_replicated
        except ImportError:
            from theirs import device_put_replicated
        x = device_put_replicated(x, devices)
    """,
    "a question before": """
        import jax
        if hasattr(jax, "device_put_replicated"):
            x = jax.device_put_replicated(x, devices)
    """,
    "a question for the version": """
        import jax
        put = jax.device_put_replicated if jax.__version__ < "0.8" else mine
    """,
    "a function of the same name": """
        from mine import device_put_replicated
        x = device_put_replicated(x, devices)
    """,
    "a method of the same name": """
        import jax
        x = self.device_put_replicated(x)
        y = tree.tree_map(f, x)
    """,
    "a parameter that hides the module": """
        import jax
        def f(jax):
            return jax.tree_map(len, [])
    """,
    "a docstring": '''
        """Once used jax.device_put_replicated, with jax_pmap_shmap_merge off."""
    ''',
    "an annotation that stays text": """
        from __future__ import annotations
        import jax
        def f(x: jax.core.Jaxpr) -> jax.core.Jaxpr:
            return x
    """,
    "the new names": """
        import jax
        f = jax.shard_map(g, mesh=mesh, in_specs=s, out_specs=s, check_vma=False)
        x = jax.tree.map(len, jax.lax.pcast(x, "data", to="varying"))
    """,
}


@pytest.mark.parametrize("source", FINE.values(), ids=FINE)
def test_code_that_works_raises_no_alarm(tmp_path, source):
    """No warning and no error."""
    assert not [finding.lines() for finding in troubles(write(tmp_path, source))]
