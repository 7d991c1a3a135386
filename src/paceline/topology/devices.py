"""Choosing the devices that a run trains on.

Owns: all visible devices by default, K of them when asked, K simulated CPU devices on a machine without accelerators.
Not here: the mesh over the chosen devices (`topology.mesh`).
Invariant: a run never trains on fewer devices than it was asked for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import jax

from paceline.base.errors import DeviceError

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_COUNT_FLAG = re.compile(r"--xla_force_host_platform_device_count=(\d+)")


def count_in_xla_flags() -> int | None:
    """The CPU device count that the environment variable XLA_FLAGS asks for, or None when it asks for none."""
    found = _COUNT_FLAG.findall(os.environ.get("XLA_FLAGS", ""))
    return int(found[-1]) if found else None


def simulate_devices(count: int) -> list[jax.Device]:
    """Make this process see `count` CPU devices. Call it before anything touches a device.

    Args:
      count: number of simulated devices, at least 1. They share the machine's cores: right for correctness, not for
    speed. Returns: the devices, in order.
    Raises: DeviceError: devices were used already and there are not `count` CPU devices, XLA_FLAGS asks for another
      count, or `count` is below 1.
    """
    if count < 1:
        raise DeviceError(
            what=f"{count} simulated devices asked for",
            why="a run needs at least one device",
            fix="use --simulate 1 or more",
        )
    flagged = count_in_xla_flags()
    if flagged is not None and flagged != count:
        raise DeviceError(
            what=f"{count} simulated devices asked for, but XLA_FLAGS asks for {flagged}",
            why="XLA reads both and they disagree, so the run would not have the devices that it reports",
            fix=f"remove --xla_force_host_platform_device_count={flagged} from XLA_FLAGS, or use --simulate {flagged}",
        )
    try:
        jax.config.update("jax_platforms", "cpu")
        if flagged is None:
            jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:  # JAX refuses the change once a backend exists; whether it matters is judged below.
        pass
    devices = jax.devices()
    if devices[0].platform != "cpu" or len(devices) < count:
        raise DeviceError(
            what=f"simulate_devices({count}) came too late: JAX already uses {_describe(devices)}",
            why="the number of CPU devices is fixed when the first device is used",
            fix="call paceline.simulate_devices before the first jax computation and before jax.devices(), "
            "or start the program with --simulate",
        )
    return devices[:count]


def choose_devices(devices: int | Sequence[jax.Device] | None = None) -> list[jax.Device]:
    """The devices of a run: all visible ones, the first K, or exactly those given.

    Raises: DeviceError: more devices than there are, none, or one of them twice.
    """
    if devices is None:
        return jax.devices()
    if not isinstance(devices, int):
        return _checked(list(devices))
    visible = jax.devices()
    if devices < 1:
        raise DeviceError(
            what=f"{devices} devices asked for",
            why="a run needs at least one device",
            fix=f"use --devices 1 to {len(visible)}",
        )
    if devices > len(visible):
        raise _too_few(devices, visible)
    return visible[:devices]


def machine_memory() -> int:
    """Bytes that this process may use of the machine's memory, which simulated devices share."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _CGROUP_LIMITS:
        try:
            limits.append(int(Path(path).read_text()))
        except (OSError, ValueError):  # another version of cgroups, or "max"
            continue
    return min(limits)


def _checked(devices: list[jax.Device]) -> list[jax.Device]:
    if not devices or len(set(devices)) != len(devices):
        raise DeviceError(
            what="the list of devices is empty" if not devices else "a device stands twice in the list of devices",
            why="every replica needs a device of its own",
            fix="pass distinct devices, for example jax.devices()[:4]",
        )
    return devices


def _too_few(asked: int, visible: Sequence[jax.Device]) -> DeviceError:
    why = "training on fewer devices than asked would change the batch a device sees without a word"
    fix = f"use --devices {len(visible)}"
    if visible[0].platform == "cpu":
        fix += f", or --simulate {asked} (paceline.simulate_devices({asked}) before the first device is used)"
        if count_in_xla_flags() == asked:
            why = "XLA_FLAGS asks for them, but it was set after the first device was used and XLA no longer reads it"
            fix = "set XLA_FLAGS before the program starts, or use --simulate instead"
    return DeviceError(what=f"{asked} devices asked for, {_describe(visible)} visible", why=why, fix=fix)


def _describe(devices: Sequence[jax.Device]) -> str:
    plural = "" if len(devices) == 1 else "s"
    return f"{len(devices)} {devices[0].platform} device{plural}"
