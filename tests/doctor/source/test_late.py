"""Settings of devices that come too late in a file: line and fix, and no alarm for those in time."""

from __future__ import annotations

import pytest

from tests.doctor.source.reading import only, troubles, write

FLAGS = '"--xla_force_host_platform_device_count=8"'
LATE = {
    "item": ("import os, jax\nprint(jax.devices())\nos.environ['XLA_FLAGS'] = VALUE\n", 3, "jax.devices in line 2"),
    "added to": ("import os, jax\njax.device_count()\nos.environ['XLA_FLAGS'] += VALUE\n", 3, "jax.device_count"),
    "default": ("import os, jax.numpy as jnp\nx = jnp.ones(3)\nos.environ.setdefault('XLA_FLAGS', VALUE)\n", 3, "ones"),
    "update": ("import os, jax\nk = jax.random.key(0)\nos.environ.update(XLA_FLAGS=VALUE)\n", 3, "jax.random.key"),
    "in a function": (
        "import os\nimport jax\ndef main():\n  jax.devices()\n  os.environ['XLA_FLAGS'] = VALUE\n", 5, "in line 4",
    ),
    "after a branch": (
        "import os, jax\nif VALUE:\n  x = jax.devices()\nos.environ['XLA_FLAGS'] = VALUE\n", 4, "in line 3",
    ),
    "in task, which is called later": (
        "import os, jax.numpy as jnp\nW = jnp.ones(3)\ndef task():\n  os.environ['XLA_FLAGS'] = VALUE\n",
        4, "in line 2",
    ),
    "in build, through two functions": (
        "import os, jax.numpy as jnp\ndef inner():\n  os.environ['XLA_FLAGS'] = VALUE\ndef setup():\n  inner()\n"
        "def build(options, shape):\n  setup()\nW = jnp.ones(3)\n", 3, "in line 8",
    ),
    "in a helper called after the use": (
        "import os, jax.numpy as jnp\ndef setup(count):\n  if count:\n    os.environ['XLA_FLAGS'] = VALUE\n"
        "W = jnp.ones(3)\nsetup(8)\n", 4, "in line 5",
    ),
    "after a helper that uses": (
        "import os, jax\ndef count():\n  return len(jax.devices())\nK = count()\nos.environ['XLA_FLAGS'] = VALUE\n",
        5, "count() with jax.devices in line 4",
    ),
    "in a default": (
        "import os, jax.numpy as jnp\ndef f(x=jnp.ones(3)):\n  return x\nos.environ['XLA_FLAGS'] = VALUE\n",
        4, "in line 2",
    ),
    "merged": ("import os, jax\njax.devices()\nos.environ |= {'XLA_FLAGS': VALUE}\n", 3, "jax.devices in line 2"),
    "update with a value that is made": (
        "import os, jax\njax.devices()\n"
        "os.environ.update({'CUDA_VISIBLE_DEVICES': '0', 'XLA_FLAGS': VALUE + str(K)})\n",
        3, "jax.devices in line 2",
    ),
    "merged with a dict by name": (
        "import os, jax\nmine = dict(XLA_FLAGS=VALUE)\njax.devices()\nos.environ |= mine\n", 4, "jax.devices in line 3",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("source", "line", "use"), LATE.values(), ids=LATE)
def test_flags_set_after_a_device_was_used_are_an_error(tmp_path, source, line, use):
    """Case jax#6887: there is still one device. The line, the use before it, and where to move it."""
    found = only(troubles(write(tmp_path, source.replace("VALUE", FLAGS))))
    assert (found.level, found.line) == ("error", line)
    assert "XLA_FLAGS is set after" in found.what and use in found.what and "not read any more" in found.what
    assert "move it above line" in (found.fix or "") and "paceline.simulate_devices(K)" in (found.fix or "")


@pytest.mark.parametrize("option", ["jax_num_cpu_devices", "jax_platforms"])
def test_options_of_jax_set_too_late_are_an_error(tmp_path, option):
    """JAX refuses the first; the second has no effect."""
    found = only(troubles(write(tmp_path, f"import jax\njax.devices()\njax.config.update('{option}', 8)\n")))
    assert (
        found.level == "error"
        and found.line == 3
        and option in found.what
        and "move it above line 2" in (found.fix or "")
    )


def test_other_variables_are_a_warning(tmp_path):
    """They may be meant for a program that the file starts."""
    source = "import os, jax\njax.devices()\nos.environ['CUDA_VISIBLE_DEVICES'] = '0'\n"
    assert only(troubles(write(tmp_path, source))).level == "warning"


IN_TIME = {
    "before": "import os\nos.environ['XLA_FLAGS'] = VALUE\nimport jax\njax.devices()\n",
    "harmless calls": "import os, jax\nf = jax.jit(abs)\nd = jax.numpy.dtype('i4')\nos.environ['XLA_FLAGS'] = VALUE\n",
    "the other branch": "import os, jax\nif VALUE:\n  jax.devices()\nelse:\n  os.environ['XLA_FLAGS'] = VALUE\n",
    "a function": "import os, jax\ndef f():\n  jax.devices()\nos.environ['XLA_FLAGS'] = VALUE\nf()\n",
    "another variable": "import os, jax\njax.devices()\nos.environ['HOME'] = '/'\nos.environ[name] = '1'\n",
    "another mapping": "import jax\njax.devices()\nenviron = {}\nenviron['XLA_FLAGS'] = '1'\n",
    "read only": "import os, jax\njax.devices()\nprint(os.environ['XLA_FLAGS'])\n",
    "a helper before the use": (
        "import os, jax\ndef setup():\n  os.environ['XLA_FLAGS'] = VALUE\nsetup()\nW = jax.numpy.ones(3)\n"
    ),
    "task where nothing is used before": (
        "import os, jax\ndef task():\n  os.environ['XLA_FLAGS'] = VALUE\n  jax.devices()\n"
    ),
    "task beside a script that uses": (
        "import os, jax\ndef task():\n  os.environ['XLA_FLAGS'] = VALUE\n"
        "if __name__ == '__main__':\n  print(jax.devices())\n"
    ),
    "a function that nobody calls": (
        "import os, jax\nW = jax.numpy.ones(3)\ndef child():\n  os.environ['XLA_FLAGS'] = VALUE\n"
    ),
    "a branch that returns": (
        "import os, jax\ndef task():\n  if VALUE == '':\n    return jax.devices()\n  os.environ['XLA_FLAGS'] = VALUE\n"
    ),
    "a generator that has not begun": (
        "import os, jax\ndef rows():\n  yield jax.numpy.ones(3)\nr = rows()\nos.environ['XLA_FLAGS'] = VALUE\n"
    ),
    "calls itself": "import os, jax\ndef f(n):\n  f(n - 1)\nf(3)\nos.environ['XLA_FLAGS'] = VALUE\n",
    "merged without them": "import os, jax\njax.devices()\nos.environ |= {'HOME': '/'}\n",
    "numpy": "import os, numpy as jnp\nx = jnp.ones(3)\nos.environ['XLA_FLAGS'] = VALUE\nimport jax\n",
}


@pytest.mark.parametrize("source", IN_TIME.values(), ids=IN_TIME)
def test_settings_in_time_raise_no_alarm(tmp_path, source):
    assert not troubles(write(tmp_path, source.replace("VALUE", FLAGS)))
