"""No check hangs or ends the others, and JAX is not needed for most."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from paceline.base.errors import OptionError
from paceline.doctor.environment import look
from paceline.doctor.environment.asked import Asked
from paceline.doctor.environment.guard import Check, run_checks
from paceline.doctor.environment.look import First, Measured, environment_findings, look_first
from paceline.doctor.environment.system import System
from paceline.doctor.finding import Finding
from tests.doctor.environment.machines import BARE_ORDER, fake_smi, gpu_machine, machine, only, script


def well(name):
    return Check(name, lambda: [Finding(name, "ok", "well")])


def test_a_check_that_raises_leaves_the_others_alone():
    """Its error is told: as not run, or in its own words if it is a user's mistake."""

    def broken():
        raise ZeroDivisionError("by zero")

    def refused():
        raise OptionError(what="--x", why="because", fix="leave it out")

    found = run_checks([well("a"), Check("b", broken), Check("c", refused), well("d")], limit_s=10).findings
    assert [finding.check for finding in found] == ["a", "b", "c", "d"]
    assert found[1].what == "not run: ZeroDivisionError: by zero" and found[1].level == "warning"
    assert found[2].level == "error" and found[2].fix == "leave it out"


def test_a_check_that_hangs_costs_the_limit_and_no_more():
    """A fifth of a second here; what it means may be given."""
    release = threading.Event()
    hangs = Finding("c", "error", "hangs", "look there")

    def stuck():
        release.wait(60)
        return []

    start = time.monotonic()
    outcome = run_checks([well("a"), Check("b", stuck), Check("c", stuck, hangs), well("d")], limit_s=0.2)
    assert time.monotonic() - start < 5
    assert outcome.left and "not run: no answer in 200 ms" in outcome.findings[1].what
    assert outcome.findings[2] is hangs and outcome.findings[3].what == "well"
    release.set()


def test_a_check_without_a_word_is_not_taken_for_well():
    found = run_checks([Check("a", list)], limit_s=10)
    assert only(found.findings, "warning").what.startswith("not run") and not found.left


def environment(first, **options):
    usual = {"devices": lambda: [Finding("devices", "ok", "8 devices")], "measured": [], "cache_folder": None}
    return environment_findings(first, Asked(), **{**usual, **options})


def test_the_checks_come_in_their_order(tmp_path):
    """Those that measure before the last."""
    found = environment(First(machine(tmp_path), flags=(Finding("flags", "ok", "none"),)),
                        measured=[Measured("collectives", why_not="--no-measure")]).findings  # fmt: skip
    assert list(dict.fromkeys(finding.check for finding in found)) == BARE_ORDER
    assert "not run: --no-measure" in next(finding.what for finding in found if finding.check == "collectives")


def test_nothing_is_measured_behind_a_check_that_hangs(tmp_path, monkeypatch):
    """The devices may be what hangs."""
    monkeypatch.setattr(look, "MEASURE_S", 0.2)
    release, ran = threading.Event(), []

    def stuck():
        release.wait(60)
        return []

    measured = [
        Measured("collectives", stuck, hung=Finding("collectives", "error", "hangs")),
        Measured("input", lambda: ran.append(1) or []),
    ]
    outcome = environment(First(machine(tmp_path), flags=(Finding("flags", "ok", "none"),)), measured=measured)
    release.set()
    told = {finding.check: finding.what for finding in outcome.findings}
    assert outcome.left and not ran
    assert told["collectives"] == "hangs" and told["input"] == "not run: an earlier check hangs"


def test_a_flag_that_would_end_the_process_blocks_jax(tmp_path):
    """So does an import that fails; what needs JAX is listed with the reason."""
    first = First(machine(tmp_path), flags=(Finding("flags", "error", "no flag", "remove it"),))
    assert "XLA would end this process" in (first.blocked or "")
    assert First(machine(tmp_path), importing="RuntimeError: old").blocked == "jax cannot be imported"
    assert First(machine(tmp_path), flags=(Finding("flags", "warning", "twice", "keep one"),)).blocked is None
    found = environment(first, devices=None).findings
    assert "not run: XLA would end this process" in found[0].what


def test_the_driver_and_the_flags_are_looked_at_first(tmp_path):
    """With a made up nvidia-smi and a flag tried for real."""
    fake_smi(tmp_path)
    first = look_first(gpu_machine(tmp_path, environment={"XLA_FLAGS": "--xla_cpu_enable_fast_math=maybe"}))
    assert len(first.driver.gpus) == 4 and first.driver.gpus[0].memory_bytes == 81559 * 1024**2
    assert "'maybe' is no value" in only(list(first.flags)).what and first.importing is None


def test_a_program_is_ended_with_what_it_started(tmp_path):
    """A script that waits for its own child."""
    script(tmp_path, "slow", "/bin/sleep 60 & echo $! > $0.pid; wait")
    system = machine(tmp_path)
    told = system.run([str(tmp_path / "bin/slow")], timeout_s=0.5)
    assert told is not None and told.code is None
    child = int((tmp_path / "bin/slow.pid").read_text())
    for _ in range(100):
        if _has_ended(child):
            break
        time.sleep(0.02)
    else:
        pytest.fail("the child still runs")
    assert system.run(["no-such-program"]) is None


def _has_ended(pid: int) -> bool:
    """Gone, or a zombie that nobody waits for."""
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or " Z " in stat.read_text()


def test_what_is_looked_at_before_jax_loads_no_jax():
    """Else XLA_FLAGS could be read by an import, and a jax that cannot be imported could not be told."""
    code = "import sys, paceline.cli.doctor; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
    assert System().host_name
