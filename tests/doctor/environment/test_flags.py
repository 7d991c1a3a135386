"""XLA_FLAGS tried for real: each of these in a process of its own."""

from __future__ import annotations

import os

import pytest

from paceline.doctor.environment import flags as module
from paceline.doctor.environment.flags import TRIED, FlagsError, flag_findings, refuse_flags
from paceline.doctor.environment.system import System
from tests.doctor.environment.machines import levels, machine, only

COUNT = "--xla_force_host_platform_device_count"


def tried(flags: str):
    return flag_findings(System(environment={**os.environ, "XLA_FLAGS": flags}))


def test_a_mistyped_flag_is_found_before_it_ends_the_process():
    """Case jax#13148: the flag, and the nearest that this jaxlib has, with the value that was given."""
    found = only(tried("--xla_cpu_enable_fast_math=false --xla_gpu_autotune_levl=2"))
    assert "--xla_gpu_autotune_levl=2 is no flag of this jaxlib" in found.what
    assert "did you mean --xla_gpu_autotune_level=2?" in (found.fix or "")


def test_the_flag_of_the_fix_is_taken():
    """With the right name XLA reads both."""
    assert levels(tried("--xla_cpu_enable_fast_math=false --xla_gpu_autotune_level=2")) == {"ok"}


def test_a_wrong_value_is_named_and_does_not_hide_an_unknown_flag():
    """XLA itself speaks of the value alone."""
    found = tried("--xla_gpu_autotune_level=high --xla_no_such_thing_at_all=1")
    assert "'high' is no value for --xla_gpu_autotune_level" in found[0].what
    assert "correct --xla_gpu_autotune_level" in (found[0].fix or "")
    assert "--xla_no_such_thing_at_all=1 is no flag" in found[1].what
    assert "remove --xla_no_such_thing_at_all" in (found[1].fix or "")


def test_a_flag_without_its_value_is_not_called_unknown():
    """XLA does: a number needs one."""
    found = only(tried(COUNT))
    assert "has no value" in found.what and f"write {COUNT}=VALUE" in (found.fix or "")


def test_flags_without_dashes_are_taken_for_a_file():
    found = only(tried("xla_cpu_enable_fast_math=true"))
    assert "for a file" in found.what and "write --xla_cpu_enable_fast_math=true" in (found.fix or "")


def test_the_dashes_are_advised_only_where_xla_takes_the_flags_with_them():
    """--xla_cpu_x is no flag either; of several all get their dashes."""
    found = only(tried("xla_cpu_x"))
    assert "for a file" in found.what
    assert (found.fix or "").startswith("--xla_cpu_x would be refused too: ") and "remove --xla_cpu_x" in (
        found.fix or ""
    )
    found = only(tried("xla_gpu_autotune_levl=2"))
    assert "did you mean --xla_gpu_autotune_level=2?" in (found.fix or "")
    found = only(tried("xla_cpu_enable_fast_math=true --xla_gpu_autotune_level=2"))
    assert found.fix == "write --xla_cpu_enable_fast_math=true --xla_gpu_autotune_level=2"


def test_what_python_cannot_run_is_no_fault_of_the_flags(tmp_path, monkeypatch):
    """A machine without jaxlib, or a jaxlib that names it otherwise: not run, so that no command is refused for it."""
    monkeypatch.setattr(module, "TRIAL", "import no_such_module_at_all")
    found = only(flag_findings(machine(tmp_path, environment={"XLA_FLAGS": "--xla_x=1"})), "warning")
    assert "not run" in found.what and "no_such_module_at_all" in found.what
    refuse_flags(dict(os.environ) | {"XLA_FLAGS": "--xla_x=1"})


def test_a_command_is_refused_once_and_tries_flags_that_are_well_once(monkeypatch):
    """The verdict goes to child processes by a variable; other flags, another Python or none there are tried again."""
    trials = []
    whole = module._try
    monkeypatch.setattr(module, "_try", lambda system, flags: trials.append(flags) or whole(system, flags))
    environment = dict(os.environ) | {"XLA_FLAGS": "--xla_gpu_autotune_level=2"}
    refuse_flags(environment)
    refuse_flags(environment)
    assert len(trials) == 1 and TRIED in environment
    environment["XLA_FLAGS"] = f"{COUNT[:-1]}=4 --xla_gpu_autotune_levl=2"
    with pytest.raises(FlagsError) as refused:
        refuse_flags(environment)
    assert (
        f"{COUNT[:-1]}=4 is no flag" in refused.value.what
        and "--xla_gpu_autotune_levl=2 is no flag" in refused.value.what
    )
    assert (
        f"did you mean {COUNT}=4?" in refused.value.fix
        and "did you mean --xla_gpu_autotune_level=2?" in refused.value.fix
    )


@pytest.mark.parametrize("flags", [None, "", f"{COUNT}=4"])
def test_no_trial_is_made_without_flags_or_for_simulated_devices_alone(monkeypatch, flags):
    monkeypatch.setattr(module, "_try", lambda *_: pytest.fail("a trial"))
    environment = {} if flags is None else {"XLA_FLAGS": flags}
    refuse_flags(environment)
    assert TRIED not in environment


def test_a_flag_given_twice_and_a_word_that_xla_passes_over_are_warnings():
    """The last value counts; the old advice on threads has no effect."""
    found = tried(f"{COUNT}=2 {COUNT}=3 intra_op_parallelism_threads=1")
    assert levels(found) == {"warning", "ok"}
    assert "the last one counts" in found[0].what and f"keep one {COUNT}" in (found[0].fix or "")
    assert "intra_op_parallelism_threads=1 has no effect" in found[1].what and "remove" in (found[1].fix or "")


def test_nothing_is_tried_where_nothing_is_set(tmp_path):
    """No process is started: this machine has no Python."""
    assert only(flag_findings(machine(tmp_path)), "ok").what == "XLA_FLAGS is not set"


@pytest.mark.parametrize("error", ["Segmentation fault", ""])
def test_an_end_without_known_words_is_an_error(tmp_path, monkeypatch, error):
    """Whatever ended the trial would end the run."""
    monkeypatch.setattr("paceline.doctor.environment.flags.TRIAL", f"import sys; sys.exit({error!r} or 3)")
    found = only(flag_findings(machine(tmp_path, environment={"XLA_FLAGS": "--xla_x=1"})))
    assert "ends" in found.what and "unset XLA_FLAGS" in (found.fix or "")
