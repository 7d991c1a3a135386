"""Variables of JAX: names without effect, platforms that are not there."""

from __future__ import annotations

import pytest

from paceline.doctor.environment import variables
from paceline.doctor.environment.system import extras_of_jax
from paceline.doctor.environment.variables import names_in_jax, variable_findings
from tests.doctor.environment.machines import PACKAGES, levels, machine, only


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("JAX_COMPILATION_CACHE_DIRR", "JAX_COMPILATION_CACHE_DIR"),
        ("JAX_ENABLE_X46", "JAX_ENABLE_X64"),
        ("XLA_PYTHON_CLIENT_PREALOCATE", "XLA_PYTHON_CLIENT_PREALLOCATE"),
        ("JAX_PLATFORM", "JAX_PLATFORMS"),
    ],
)
def test_a_mistyped_variable_is_named_with_the_nearest(tmp_path, wrong, right):
    """Known is what stands in the sources of the installed JAX."""
    assert right in names_in_jax() and wrong not in names_in_jax()
    found = only(variable_findings(machine(tmp_path, environment={wrong: "1"})), "warning")
    assert f"{wrong} has no effect" in found.what and f"did you mean {right}?" in (found.fix or "")


def test_a_variable_like_no_other_is_to_be_unset(tmp_path):
    found = only(variable_findings(machine(tmp_path, environment={"JAX_QQQQ_ZZZZ": "1"})), "warning")
    assert found.fix == "unset JAX_QQQQ_ZZZZ"


def test_a_variable_that_xla_alone_reads_is_known(tmp_path, monkeypatch):
    """It stands in a library, to the end of a word; one that is only the beginning of another is none."""
    (tmp_path / "empty.so").touch()
    (tmp_path / "plugin.so").write_bytes(b"\x7fELF\0XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB\0more")
    whole = variables.package_files
    monkeypatch.setattr(variables, "package_files", lambda packages, pattern: (
        [tmp_path / "empty.so", tmp_path / "plugin.so"] if pattern == "*.so" else whole(packages, pattern)
    ))  # fmt: skip
    environment = {"XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB": "64"}
    assert levels(variable_findings(machine(tmp_path, environment=environment))) == {"ok"}
    environment = {"XLA_PJRT_GPU_HOST_MEMORY_LIMIT": "64"}
    assert "has no effect" in only(variable_findings(machine(tmp_path, environment=environment)), "warning").what


def test_the_libraries_of_jax_are_looked_into():
    """That of jaxlib is among them, and holds the name of XLA's own flags."""
    assert any(file.stat().st_size > 10_000_000 for file in variables.package_files(variables._LIBRARIES, "*.so"))
    assert variables._is_in_libraries("XLA_FLAGS") and not variables._is_in_libraries("XLA_FLAGG")


def test_known_variables_are_listed(tmp_path):
    """Names only: a value may be a secret."""
    environment = {"JAX_ENABLE_X64": "1", "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--x", "HOME": "/"}
    found = only(variable_findings(machine(tmp_path, environment=environment)), "ok")
    assert found.what == "set for JAX: JAX_ENABLE_X64, JAX_PLATFORMS"


def test_an_unknown_platform_is_an_error(tmp_path):
    """JAX would end with it."""
    found = only(variable_findings(machine(tmp_path, environment={"JAX_PLATFORMS": "cuda,cpuu"})))
    assert "JAX_PLATFORMS=cpuu is no platform" in found.what and "did you mean cpu?" in (found.fix or "")


@pytest.mark.parametrize(
    ("environment", "words", "fix"),
    [
        ({"JAX_ENABLE_X64": "maybe"}, "ValueError: invalid truth value 'maybe' for environment 'JAX_ENABLE_X64'",
         "set it to true or false, or unset JAX_ENABLE_X64"),
        ({"JAX_NUM_CPU_DEVICES": "four"}, 'ValueError: Invalid value "four" for JAX flag jax_num_cpu_devices',
         "set it to a value that JAX takes, or unset JAX_NUM_CPU_DEVICES"),
    ],
)  # fmt: skip
def test_a_value_for_which_jax_cannot_be_imported_is_named(tmp_path, environment, words, fix):
    """JAX's own words, of 0.10 and 0.12; a failure that names no variable which is set is no matter of variables."""
    machine_ = machine(tmp_path, environment=environment | {"JAX_ENABLE": "1"})
    found = only(variable_findings(machine_, importing=words))
    ((name, value),) = environment.items()
    assert found.what == f"{name}={value} is why jax cannot be imported: {words}" and found.fix == fix
    assert "error" not in levels(variable_findings(machine_, importing="RuntimeError: jaxlib is version 0.10"))
    assert "error" not in levels(variable_findings(machine(tmp_path), importing=words))


def test_a_platform_without_its_package_is_an_error(tmp_path):
    """CUDA without a plugin; with it there is nothing to say."""
    environment, bare = {"JAX_PLATFORMS": "cuda"}, {"jax": "0.12.0", "jaxlib": "0.12.0"}
    found = only(variable_findings(machine(tmp_path, environment=environment, packages=lambda: bare)))
    assert "no package for it" in found.what and 'pip install "jax[cuda13]"' in (found.fix or "")
    assert levels(variable_findings(machine(tmp_path, environment=environment, packages=lambda: PACKAGES))) == {"ok"}


@pytest.mark.parametrize(("platform", "extra"), [("rocm", "rocm7-local"), ("gpu", "cuda13"), ("tpu", "tpu")])
def test_the_command_for_a_platform_names_an_extra_that_jax_has(tmp_path, platform, extra):
    """From the metadata of the installed jax; without one for it no command is made up."""
    environment, bare = {"JAX_PLATFORMS": platform}, {"jax": "0.12.0", "jaxlib": "0.12.0"}
    found = only(variable_findings(machine(tmp_path, environment=environment, packages=lambda: bare)))
    assert found.fix == f'pip install "jax[{extra}]", or unset JAX_PLATFORMS'
    none = machine(tmp_path, environment=environment, packages=lambda: bare, extras=frozenset)
    assert only(variable_findings(none)).fix == "unset JAX_PLATFORMS"


def test_the_extras_are_those_of_the_installed_jax():
    """As pip reads them; both versions of the tests have these."""
    assert {"cuda12", "cuda13", "tpu"} <= extras_of_jax() and "rocm" not in extras_of_jax()
