"""A lowered step becomes its scheduled program, compiled once for each content.

Owns: the hash of a program, the compilation, its failure in words.
Not here: the files (`insight.compiling.cache`), reading the text (`insight.hlo`).
Invariant: two programs share an entry only if XLA is given the same input: the same StableHLO with its shardings, the
same target, versions, flags and options. Names of files and lines are not part of it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jaxlib.version

from paceline.base.errors import PacelineError
from paceline.insight.compiling.cache import Entry, ProgramCache
from paceline.insight.compiling.target import Target, cuda_plugins, first_line
from paceline.insight.memory.stats import MemoryStats, memory_stats

_FORMAT = "1"
"""Of the entries; a change makes all older ones unknown."""

_TARGET_OPTIONS = {"xla_gpu_autotune_level": 0}
"""Without a GPU there is nothing to time kernels on, yet XLA compiles the candidates all the same. Measured for a
convolutional step on an H100: the schedule and the memory do not change, and the compilation takes 40 % of the time."""


class CompileError(PacelineError):
    """A step that the compiler of the target does not take."""


@dataclass(frozen=True)
class CompiledText:
    """A compiled program, without the means to run it.

    Args:
      text: HLO in the order in which a device runs it.
      memory: of one device; None if the compiler gives none.
      compile_s: seconds that the compilation took, when it took place.
      from_cache: whether that was in an earlier call.
      platform: ``cpu`` or ``cuda``.
    """

    text: str
    memory: MemoryStats | None
    compile_s: float
    from_cache: bool
    platform: str


def compile_program(
    lowered: jax.stages.Lowered, *, target: Target | None = None, cache: ProgramCache | None = None,
    compiler_options: Mapping[str, Any] | None = None, begin: Callable[[], None] = lambda: None,
) -> CompiledText:  # fmt: skip
    """The scheduled program, from the cache or compiled now.

    Args:
      lowered: of a step over the devices of the target.
      target: what it was lowered for; None for the devices at hand.
      cache: None to compile in any case, and keep nothing.
      compiler_options: of XLA, for this program alone; for a target in addition to those that leave autotuning out.
      begin: called before a compilation, so not if the cache has it.
    Raises: CompileError: the compiler refuses the program or an option.
    """
    options = {**(_TARGET_OPTIONS if target else {}), **(compiler_options or {})}
    key = program_key(lowered, target=target, compiler_options=options)
    kept = cache.read(key) if cache is not None else None
    if kept is not None:
        return CompiledText(kept.text, kept.memory, kept.compile_s, True, kept.platform)
    begin()
    start = time.perf_counter()
    compiled = _compile(lowered, target=target, compiler_options=options)
    entry = Entry(compiled.as_text() or "", memory_stats(compiled), time.perf_counter() - start, _platform(target))
    if cache is not None:
        cache.write(key, entry)
    return CompiledText(entry.text, entry.memory, entry.compile_s, False, entry.platform)


def program_key(
    lowered: jax.stages.Lowered, *, target: Target | None = None, compiler_options: Mapping[str, Any] | None = None
) -> str:
    """SHA-256 of all that the compiler's answer depends on, as hexadecimal digits."""
    digest = hashlib.sha256()
    versions = {"jax": jax.__version__, "jaxlib": jaxlib.version.__version__, **(cuda_plugins() if target else {})}
    place = [target.config, target.topology] if target else [_platform(None), platform.machine(), str(os.cpu_count())]
    options = sorted((compiler_options or {}).items())
    for part in (_FORMAT, repr(versions), *place, os.environ.get("XLA_FLAGS", ""), repr(options)):
        digest.update(f"{len(part)}:{part}".encode())
    digest.update(lowered.as_text().encode())  # without debug_info: no file names, no lines
    return digest.hexdigest()


def _compile(lowered: jax.stages.Lowered, *, target: Target | None, compiler_options: dict[str, Any]) -> Any:
    try:
        return lowered.compile(compiler_options=compiler_options or None)
    except (jax.errors.JaxRuntimeError, ValueError, NotImplementedError) as error:
        where = "for the target" if target else "for the devices at hand"
        raise CompileError(
            what=f"the step does not compile {where}: {first_line(error)}",
            why="there is no program whose memory and time could be read",
            fix=_fix(str(error)),
        ) from error


def _fix(cause: str) -> str:
    if "RESOURCE_EXHAUSTED" in cause or "out of memory" in cause.lower():
        return "use a smaller --batch, or --accumulation to work on fewer rows at once"
    if "option" in cause.lower():
        return "leave the compiler option out, or look its name up for this version of jaxlib"
    return "compile a smaller part of the loss alone with jax.jit(loss).lower(...).compile() to find what is refused"


def _platform(target: Target | None) -> str:
    if target is not None:
        return "cuda"
    return {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())
