"""The devices as JAX sees them: kinds, number, memory, mixtures, simulated ones beside the machine's cores.

Owns: the first use of a device, with JAX's own words if it fails and a limit if it hangs; a GPU that JAX does not use,
with the reason.
Not here: versions (`versions`), memory that others hold (`memory`).
"""

from __future__ import annotations

import collections
import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from paceline.base.errors import PacelineError
from paceline.base.units import format_bytes, format_count, format_duration
from paceline.doctor.environment.asked import Asked
from paceline.doctor.environment.gpus import Driver, nvidia_card
from paceline.doctor.environment.limits import usable_cores
from paceline.doctor.environment.system import System
from paceline.doctor.environment.versions import cuda_of
from paceline.doctor.finding import Finding, error_finding
from paceline.topology.devices import choose_devices, machine_memory

CHECK = "devices"

START_S = 120.0
"""Limit of the first use of a device, in which a broken driver hangs; far above what a start takes."""


class Heard(logging.Handler):
    """What JAX logs while it starts: why a plugin is left out stands there only, with a traceback."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message, or the error behind it where there is one."""
        error = record.exc_info[1] if record.exc_info else None
        text = record.getMessage() if error is None else f"{type(error).__name__}: {error}"
        self.texts.append(" ".join(text.split())[:300])


HEARD = Heard()
"""JAX says it once a process, at the first use of a device."""


_STARTS: list[threading.Thread] = []
"""First uses that did not end in time. JAX holds a lock meanwhile, so no other thread can use a device either."""


def start_devices(*, limit_s: int | float = START_S) -> Finding | None:
    """Use a device for the first time; why that fails or that it hangs, or None. JAX's words name the backend."""
    if start_hangs():
        return _hanging(limit_s)
    raised: list[Exception] = []
    thread = threading.Thread(target=_use, args=(raised,), name="paceline-doctor-start", daemon=True)
    with listening():
        thread.start()
        thread.join(limit_s)
    if thread.is_alive():
        _STARTS.append(thread)
        return _hanging(limit_s)
    return start_failure(raised[0]) if raised else None


def start_hangs() -> bool:
    """Whether a first use of a device still runs in a thread that was given up: nothing may use a device then."""
    return any(thread.is_alive() for thread in _STARTS)


def _use(raised: list[Exception]) -> None:
    try:
        jax.devices()
    except Exception as error:  # RuntimeError for a platform; AssertionError where its plugin failed before
        raised.append(error)


def _hanging(limit_s: int | float) -> Finding:
    what = f"JAX hangs at its first use of a device: no answer in {format_duration(limit_s)}"
    fix = "look whether nvidia-smi answers, restart the machine or its driver; JAX_PLATFORMS=cpu leaves the GPUs out"
    return Finding(CHECK, "error", what, fix)


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Keep what JAX logs about its start in `HEARD`, and off the terminal."""
    logger = logging.getLogger("jax._src.xla_bridge")
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(HEARD)
    try:
        yield
    finally:
        logger.removeHandler(HEARD)
        logger.propagate = propagate


def start_failure(error: Exception) -> Finding:
    """JAX's refusal to start as a finding."""
    words = "; ".join(dict.fromkeys([*HEARD.texts, " ".join(str(error).split())[:300]])).strip("; ")
    fix = "mend what the checks of versions and variables name below, or what JAX says here"
    fix += "; JAX_PLATFORMS=cpu leaves the accelerator out"
    return Finding(CHECK, "error", f"JAX cannot use a device: {words or type(error).__name__}", fix)


def device_findings(system: System, driver: Driver, *, asked: Asked) -> list[Finding]:
    """What a run would get.

    Raises: RuntimeError: of JAX, if it cannot start; see `start_devices`.
    """
    visible = jax.devices()
    try:
        chosen = choose_devices(asked.devices)
    except PacelineError as error:
        return [Finding(CHECK, "ok", _described(visible)), error_finding(CHECK, error)]
    found = [Finding(CHECK, "ok", _described(chosen, of=len(visible)))]
    return [*found, *_mixed(chosen), *_simulated(system, chosen), *_unused_gpu(system, driver, visible, asked)]


def _described(devices: Sequence[Any], *, of: int | None = None) -> str:
    """``4 of 8 devices: 8 x NVIDIA H100 80GB HBM3 (cuda), 79.1 GB each for JAX``."""
    kinds = collections.Counter((device.device_kind, device.platform) for device in devices)
    number = format_count(len(devices), "device") if of in (None, len(devices)) else f"{len(devices)} of {of} devices"
    text = f"{number}: " + ", ".join(f"{count} x {kind} ({place})" for (kind, place), count in kinds.items())
    limits = [_limit(device) for device in devices]
    if devices[0].platform == "cpu":
        return f"{text}, which share {format_bytes(machine_memory())} of memory"
    known = [limit for limit in limits if limit is not None]
    if not known:
        return f"{text}; their memory is not known"
    return f"{text}, {format_bytes(min(known))} each for JAX"


def _limit(device: Any) -> int | None:
    return ((device.memory_stats() or {}) if device.platform != "cpu" else {}).get("bytes_limit")


def _mixed(devices: Sequence[Any]) -> Iterator[Finding]:
    """Kinds that differ: every step is as slow as the slowest."""
    kinds = collections.Counter(device.device_kind for device in devices)
    if len(kinds) > 1:
        names = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
        fix = "train on one kind: choose it by CUDA_VISIBLE_DEVICES or the scheduler's constraint"
        what = f"the devices are of different kinds ({names}): each step waits for the slowest"
        yield Finding(CHECK, "warning", what, fix)
    limits = {limit for device in devices if (limit := _limit(device)) is not None}
    if len(kinds) == 1 and limits and min(limits) < 0.9 * max(limits):
        what = f"JAX has between {format_bytes(min(limits))} and {format_bytes(max(limits))} on the devices"
        yield Finding(CHECK, "warning", what, "see what holds memory on them, in the check of occupied memory")


def _simulated(system: System, devices: Sequence[Any]) -> Iterator[Finding]:
    if devices[0].platform != "cpu" or len(devices) == 1:
        return
    cores = usable_cores(system)
    text = (
        f"the devices are simulated: {len(devices)} share {cores:.3g} CPU cores, right for correctness, not for speed"
    )
    yield Finding(CHECK, "ok", text)


def _unused_gpu(system: System, driver: Driver, visible: Sequence[Any], asked: Asked) -> Iterator[Finding]:
    """JAX runs on CPU beside a GPU, or has a plugin and no GPU."""
    if visible[0].platform != "cpu" or asked.simulate is not None:
        return
    platforms, hidden = system.variable("JAX_PLATFORMS"), system.environment.get("CUDA_VISIBLE_DEVICES")
    cuda = cuda_of(system.packages())
    if "cpu" in platforms and "cuda" not in platforms and "gpu" not in platforms:
        if driver.present:
            yield Finding(CHECK, "ok", f"JAX_PLATFORMS={platforms} leaves the GPU of this machine out")
    elif driver.present and hidden is not None and hidden.strip() in ("", "-1"):
        what = f"JAX runs on CPU: CUDA_VISIBLE_DEVICES={hidden!r} hides every GPU of this machine"
        yield Finding(CHECK, "error", what, "unset CUDA_VISIBLE_DEVICES, or JAX_PLATFORMS=cpu if CPU is meant")
    elif driver.present:
        why = backend_error("cuda")
        told = f": {why}" if why else ", and JAX gives no reason" if cuda else ": no plugin for it is installed"
        fix = "mend what the checks of versions and visible GPUs name; JAX_PLATFORMS=cuda makes JAX stop instead"
        yield Finding(CHECK, "error", f"this machine has an NVIDIA GPU, but JAX runs on CPU{told}", fix)
    elif cuda is not None and not nvidia_card(system):
        what = f"this machine has no NVIDIA GPU, so JAX runs on CPU; the plugin for CUDA {cuda} is what paceline plan"
        yield Finding(CHECK, "ok", f"{what} compiles for GPUs with")
    elif cuda is not None:
        what = (
            f"the plugin for CUDA {cuda} is installed, but JAX sees no NVIDIA GPU here and runs on CPU, though there "
        )
        what += "is a card in the machine"
        what += f" ({'; '.join(HEARD.texts)})" if HEARD.texts else ""
        fix = "inside a container, start it with --gpus all; under Slurm, ask for --gpus; else load the NVIDIA driver"
        yield Finding(CHECK, "warning", what, fix)


def backend_error(platform: str) -> str | None:
    """Why JAX left a backend out when it started, in its own words; None if it does not say."""
    from jax._src import xla_bridge  # JAX keeps it there and logs it below the level that is shown

    words = getattr(xla_bridge, "_backend_errors", {}).get(platform)
    if words:
        return " ".join(str(words).split())[:300]
    return "; ".join(HEARD.texts) or None
