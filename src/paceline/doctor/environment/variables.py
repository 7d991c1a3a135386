"""Variables that JAX reads: names that it does not know, and values that it would refuse.

Owns: ``JAX_*`` and ``XLA_*`` names against those in the installed JAX, platforms that are not there, the value for
which jax cannot be imported.
Not here: XLA_FLAGS (`flags`), variables of processes (`processes`), of memory (`memory`).
Invariant: what is known is read from the installed JAX, its libraries included, never from a list that ages. Imports no
jax.
"""

from __future__ import annotations

import difflib
import functools
import mmap
import re
from collections.abc import Iterator

from paceline.base.errors import PacelineError
from paceline.doctor.environment.system import System, package_files
from paceline.doctor.finding import Finding

CHECK = "variables"

_OURS = re.compile(r"(JAX|XLA|LIBTPU)_[A-Z0-9_]+")
_WRITTEN = re.compile(r"[\"']((?:JAX|XLA|LIBTPU|jax)_[A-Za-z0-9_]+)[\"']")
_PACKAGES = ("jax", "jaxlib")
_LIBRARIES = ("jaxlib", "jax_plugins", "libtpu")
_PLATFORMS = ("cpu", "cuda", "gpu", "rocm", "tpu", "METAL", "metal", "oneapi", "proxy")
_PLUGINS = {"cuda": "cuda", "gpu": "cuda", "rocm": "rocm", "tpu": "libtpu"}
_CUDA_OR_ROCM = ("cuda", "rocm")


class VariableError(PacelineError):
    """A variable with a value for which jax cannot be imported."""


def import_refusal(system: System, error: Exception) -> VariableError | None:
    """A failed import of jax as a user's mistake; None if its words name no variable that is set."""
    found = list(_refused(system, f"{type(error).__name__}: {error}"))
    if not found:
        return None
    why = "without jax nothing can be computed"
    return VariableError(
        what="; ".join(finding.what for finding in found),
        why=why,
        fix="; ".join(finding.fix or "" for finding in found),
    )


def variable_findings(system: System, *, importing: str | None = None) -> list[Finding]:
    """Warnings for names that have no effect, errors for platforms that JAX would not find and values that it refuses.

    Args:
      importing: why jax could not be imported, in its own words; None if it could.
    """
    found = [*_refused(system, importing), *_unknown(system), *_platforms(system)]
    if found:
        return found
    names = sorted(name for name in system.environment if _OURS.fullmatch(name) and name != "XLA_FLAGS")
    return [Finding(CHECK, "ok", f"set for JAX: {', '.join(names)}" if names else "no variable of JAX is set")]


def refused_variables(system: System, importing: str | None) -> list[str]:
    """The variables that the words of a failed import name, as ``JAX_ENABLE_X64`` or as option ``jax_enable_x64``."""
    words = set(re.findall(r"\w+", (importing or "").upper()))
    return sorted(name for name in system.environment if _OURS.fullmatch(name) and name in words)


def _refused(system: System, importing: str | None) -> Iterator[Finding]:
    for name in refused_variables(system, importing):
        what = f"{name}={system.variable(name)} is why jax cannot be imported: {importing}"
        values = "true or false" if "truth value" in (importing or "") else "a value that JAX takes"
        yield Finding(CHECK, "error", what, f"set it to {values}, or unset {name}")


def _unknown(system: System) -> Iterator[Finding]:
    for name in sorted(name for name in system.environment if _OURS.fullmatch(name)):
        if name in names_in_jax() or _is_in_libraries(name):
            continue
        near = difflib.get_close_matches(name, sorted(names_in_jax()), n=1, cutoff=0.75)
        fix = f"did you mean {near[0]}? Set that, or unset {name}" if near else f"unset {name}"
        yield Finding(CHECK, "warning", f"{name} has no effect: this JAX knows no such variable", fix)


@functools.cache
def names_in_jax() -> frozenset[str]:
    """Every name in JAX's Python sources that is, or as an option of `jax.config` becomes, a variable. About 0.2 s."""
    found: set[str] = set()
    for file in package_files(_PACKAGES, "*.py"):
        text = file.read_text(encoding="utf-8", errors="replace")
        found |= {name.upper() for name in _WRITTEN.findall(text)}
    return frozenset(found)


def _is_in_libraries(name: str) -> bool:
    """Whether XLA itself reads a variable: its name, to the end of a word, in a library. About 0.1 s each."""
    whole = re.compile(re.escape(name.encode()) + rb"(?![A-Za-z0-9_])")
    for file in package_files(_LIBRARIES, "*.so"):
        if not file.stat().st_size:
            continue
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if whole.search(content):
                return True
    return False


def _platforms(system: System) -> Iterator[Finding]:
    """JAX_PLATFORMS with a platform that no package brings. JAX would end with it at the first use of a device."""
    asked = [name.strip() for name in system.variable("JAX_PLATFORMS").split(",") if name.strip()]
    for name in asked:
        if name not in _PLATFORMS:
            near = difflib.get_close_matches(name, _PLATFORMS, n=1)
            fix = f"did you mean {near[0]}? " if near else ""
            yield Finding(CHECK, "error", f"JAX_PLATFORMS={name} is no platform of JAX",
                          f"{fix}use cpu, cuda, rocm or tpu, or unset it to let JAX choose")  # fmt: skip
        elif name in _PLUGINS and not any(_brings(package, name) for package in system.packages()):
            extra = _extra(system, {"gpu": "cuda"}.get(name, name))
            install = f'pip install "jax[{extra}]", or ' if extra else ""
            yield Finding(CHECK, "error", f"JAX_PLATFORMS={name}, but no package for it is installed",
                          f"{install}unset JAX_PLATFORMS")  # fmt: skip


def _extra(system: System, platform: str) -> str | None:
    """The newest extra of the installed jax for a platform: ``cuda13``, ``rocm7-local``; None if it has none."""
    form = re.compile(rf"{platform}(\d*)(-local)?")
    found = [match for match in map(form.fullmatch, system.extras()) if match]
    # Rather one that brings the libraries too than one that takes those of the machine.
    best = max(found, key=lambda match: (match[2] is None, int(match[1] or 0)), default=None)
    return None if best is None else best[0]


def _brings(package: str, platform: str) -> bool:
    if platform == "gpu":
        return any(name in package for name in _CUDA_OR_ROCM) and package.startswith("jax-")
    if platform == "tpu":
        return package == "libtpu"
    return package.startswith(f"jax-{platform}")
