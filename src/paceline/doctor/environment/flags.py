"""XLA_FLAGS, tried in a process of its own: a flag that XLA does not know ends the process that reads it.

Owns: the trial, the flag's name, the nearest flag that this jaxlib knows, flags given twice; the error that the other
commands end with in place of XLA's line.
Not here: other variables (`variables`), a source that sets the flags too late (`doctor.source.late`).
Invariant: runs before this process reads XLA_FLAGS itself. Imports no jax.
"""

from __future__ import annotations

import difflib
import mmap
import re
import sys
from collections.abc import Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor

from paceline.base.errors import PacelineError
from paceline.doctor.environment.system import Output, System, package_files
from paceline.doctor.finding import Finding, not_run

CHECK = "flags"

TRIAL = "from jaxlib import xla_client; xla_client.CompileOptions()"
"""Reads XLA_FLAGS as the first use of a device does, and nothing else: 0.2 s on two cores."""

TRIED = "PACELINE_XLA_FLAGS_TRIED"
"""Variable with the Python and the flags that a trial found to be well, so that child processes make none again."""

_UNKNOWN = re.compile(r"Unknown flags? in XLA_FLAGS: (?P<flags>.*)")
_VALUE = re.compile(r"Couldn't interpret value (?P<value>.*) for flag (?P<name>\w+)\.")
_FILE = re.compile(r'Could not open file "(?P<file>[^"]*)"')
_TRACEBACK = "Traceback (most recent call last)"
_NAMES = re.compile(rb"xla_[a-z0-9_]{3,80}")
_SIMULATES = re.compile(r"--xla_force_host_platform_device_count=\d{1,6}")
"""The one flag that every jaxlib takes, and that most who simulate devices set: no trial is needed."""
_CANDIDATES = 6


class FlagsError(PacelineError):
    """XLA_FLAGS with something that XLA ends the process for."""


def refuse_flags(environment: MutableMapping[str, str]) -> None:
    """Try XLA_FLAGS, unless a process above has, and remember in the environment that they are well.

    Raises: FlagsError: XLA would end this process at its first use of a device, with a line that names no way out.
    """
    text = environment.get("XLA_FLAGS", "").strip()
    known = f"{sys.prefix}:{text}"
    if not text or environment.get(TRIED) == known or all(map(_SIMULATES.fullmatch, text.split())):
        return
    found = flag_findings(System(environment=environment))
    errors = [finding for finding in found if finding.level == "error"]
    if errors:
        raise FlagsError(
            what="; ".join(finding.what for finding in errors),
            why="this command would end at its first use of a device, without a report",
            fix="; ".join(finding.fix for finding in errors if finding.fix),
        )
    if any(finding.level == "ok" for finding in found):  # else the trial was not made
        environment[TRIED] = known


def flag_findings(system: System) -> list[Finding]:
    """What XLA makes of XLA_FLAGS. An error means: any process that uses a device with them ends."""
    text = system.variable("XLA_FLAGS")
    if not text:
        return [Finding(CHECK, "ok", "XLA_FLAGS is not set")]
    tried = _try(system, text)
    if tried is None or tried.code is None:
        return [not_run(CHECK, "the process that was to read XLA_FLAGS did not end")]
    if tried.code == 0:
        flags = text.split()
        number = "1 flag" if len(flags) == 1 else f"{len(flags)} flags"
        return [*_repeated(flags), *_idle(flags), Finding(CHECK, "ok", f"XLA reads XLA_FLAGS ({number})")]
    faults = list(_faults(system, text, tried))
    if not faults and _TRACEBACK in tried.err:  # of Python, not of XLA
        return [not_run(CHECK, f"jaxlib cannot read XLA_FLAGS: {tried.err.strip().splitlines()[-1][:200]}")]
    return faults or [_other(tried)]


def _try(system: System, flags: str) -> Output | None:
    return system.python(TRIAL, variables={"XLA_FLAGS": flags})


def _faults(system: System, text: str, tried: Output) -> Iterator[Finding]:
    file = _FILE.search(tried.err)
    if file:
        yield _no_file(system, file["file"])
        return
    values = {found["name"]: found["value"] for found in _VALUE.finditer(tried.err)}
    for name, value in values.items():
        what = f"XLA_FLAGS: {value!r} is no value for --{name}, and XLA ends the process that reads it"
        yield Finding(CHECK, "error", what, f"correct --{name}, or remove it from XLA_FLAGS")
    if values:  # which hide the unknown names
        rest = " ".join(flag for flag in text.split() if _name(flag) not in values)
        again = _try(system, rest) if rest else None
        tried = again or tried
    unknown = _UNKNOWN.search(tried.err)
    for flag in unknown["flags"].split() if unknown else ():
        yield _unknown(system, flag)


def _no_file(system: System, name: str) -> Finding:
    """Flags whose first has no dashes. With them they may be wrong all the same, so they are tried."""
    what = f"XLA_FLAGS begins with {name!r}: XLA takes what does not begin with -- for a file, and there is none"
    what, fix = f"{what}, which ends the process that reads it", "let every flag begin with --"
    if not name.startswith("xla"):
        return Finding(CHECK, "error", what, fix)
    written = " ".join(flag if flag.startswith("--") else f"--{flag}" for flag in name.split())
    tried = _try(system, written)
    if tried is not None and tried.code == 0:
        return Finding(CHECK, "error", what, f"write {written}")
    faults = list(_faults(system, written, tried)) if tried is not None else []
    further = "; ".join(fault.fix for fault in faults if fault.fix)
    return Finding(CHECK, "error", what, f"{written} would be refused too: {further}" if further else fix)


def _unknown(system: System, flag: str) -> Finding:
    what = f"XLA_FLAGS: {flag} is no flag of this jaxlib, and XLA ends the process that reads it"
    name, value = _name(flag), flag.partition("=")[2]
    known = _known_near(system, name)
    if name in known:
        return Finding(CHECK, "error", f"XLA_FLAGS: {flag} has no value, and so XLA ends the process that reads it",
                       f"write --{name}=VALUE")  # fmt: skip
    if not flag.startswith("--"):
        return Finding(CHECK, "error", what, "let every flag begin with --")
    if not known:
        return Finding(CHECK, "error", what, f"remove --{name}: this jaxlib has no flag of a similar name")
    written = f"--{known[0]}{'=' + value if value else ''}"
    return Finding(CHECK, "error", what, f"did you mean {written}? Write that, or remove --{name} from XLA_FLAGS")


def _known_near(system: System, name: str) -> list[str]:
    """Flags with a similar name that XLA takes, the nearest first; each is tried."""
    candidates = difflib.get_close_matches(name, sorted(_names_in_jaxlib()), n=_CANDIDATES, cutoff=0.7)
    if name in candidates:
        candidates = [name]
    with ThreadPoolExecutor(2) as pool:
        taken = list(pool.map(lambda candidate: _takes(system, candidate), candidates))
    return [candidate for candidate, takes in zip(candidates, taken, strict=True) if takes]


def _takes(system: System, name: str) -> bool:
    """Whether XLA knows the name: it then refuses at most the value."""
    tried = _try(system, f"--{name}=1")
    return tried is not None and tried.code is not None and (tried.code == 0 or bool(_VALUE.search(tried.err)))


def _names_in_jaxlib() -> set[str]:
    """Everything in jaxlib's library that looks like the name of a flag. XLA's own --help is cut at 15 kB."""
    largest = max(package_files(("jaxlib",), "*.so"), key=lambda file: file.stat().st_size, default=None)
    if largest is None:
        return set()
    with largest.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return {name.decode() for name in _NAMES.findall(content)}


def _repeated(flags: list[str]) -> Iterator[Finding]:
    """Flags given twice with different values. XLA takes the last: seen with xla_force_host_platform_device_count."""
    values: dict[str, list[str]] = {}
    for flag in flags:
        values.setdefault(_name(flag), []).append(flag)
    for name, given in values.items():
        if len(set(given)) > 1:
            what = f"XLA_FLAGS holds {' and '.join(given)}: the last one counts"
            yield Finding(CHECK, "warning", what, f"keep one --{name}")


def _idle(flags: list[str]) -> Iterator[Finding]:
    """Words that XLA passes over without one, as in the old advice ``intra_op_parallelism_threads=1``."""
    for flag in flags:
        if not flag.startswith("--"):
            yield Finding(CHECK, "warning", f"XLA_FLAGS: {flag} has no effect: XLA reads what begins with -- only",
                          f"remove {flag}, or write --{flag} if XLA has such a flag")  # fmt: skip


def _name(flag: str) -> str:
    return flag.lstrip("-").partition("=")[0]


def _other(tried: Output) -> Finding:
    lines = [line for line in tried.err.splitlines() if line.strip()]
    why = next((line for line in lines if line.startswith("F")), lines[-1] if lines else f"exit code {tried.code}")
    return Finding(
        CHECK, "error", f"a process that reads XLA_FLAGS ends: {why[:200]}", "unset XLA_FLAGS, then add one by one"
    )
