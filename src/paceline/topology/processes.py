"""The processes of a run: how they join, exchange a few words, and leave.

Owns: the one call of `jax.distributed.initialize`, small texts exchanged through its key-value store, the end of a
process whose peers may wait for it.
Not here: who they are (`topology.membership`), watching each other (`topology.peers`), what they must agree on
(`train.agreement`).
Invariant: nothing here waits without a limit, and a process that is waited for in vain is named.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import math
import os
import sys
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NoReturn

import jax

from paceline.base.errors import DeviceError, OptionError, PacelineError, PeerError, error_from
from paceline.base.exits import INTERRUPTED, TERMINATED
from paceline.base.units import format_duration
from paceline.topology.early_use import early_use
from paceline.topology.membership import Membership, find_membership, split_address, visible_gpus
from paceline.topology.peers import PeerMonitor
from paceline.topology.rendezvous import meet, wait_for_listener

EXCHANGE_TIMEOUT_S = 1800.0
"""How far processes may be apart, for example while each loads its data. One that died is noticed long before."""
_LISTENER_S = 10.0
_SHUTDOWN_S = 3600
"""How long a process that ended waits for the others, which may have more to do; a dead one is noticed long before."""
_LAST_S = 0.3
"""Process 0 holds the service that all are connected to: it ends last, or the others end with a C++ trace."""


@dataclass
class Processes:
    """The processes of this run, as one of them sees them.

    Args:
      index: of this process.
      count: P.
      machines: where each runs, by index.
      monitor: watches the others; None in a run of one process, and where JAX was joined without Paceline.
    """

    index: int = 0
    count: int = 1
    machines: tuple[str, ...] = ()
    monitor: PeerMonitor | None = None
    _client: Any = None
    _error: str = ""
    _numbers: dict[str, itertools.count[int]] = field(default_factory=lambda: defaultdict(itertools.count))

    @property
    def several(self) -> bool:
        """Whether there is more than one."""
        return self.count > 1

    def exchange(self, name: str, text: str, *, timeout_s: float = EXCHANGE_TIMEOUT_S) -> list[str]:
        """What every process says under this name, by index. All must call it, in the same order for one name.

        Costs about a millisecond on one machine; uses no device, so any thread may call it.

        Raises: PeerError: a process said nothing in time.
        """
        if not self.several:
            return [text]
        number = next(self._numbers[name])
        self._client.key_value_set(f"paceline/{name}/{number}/{self.index}", text)
        said = [
            text if peer == self.index else self._hear(name, number, peer=peer, timeout_s=timeout_s)
            for peer in range(self.count)
        ]
        if number > 1:  # whoever is here has heard everything of the exchange before the last
            self._client.key_value_delete(f"paceline/{name}/{number - 2}/{self.index}")
        return said

    def _hear(self, name: str, number: int, *, peer: int, timeout_s: float) -> str:
        try:
            return self._client.blocking_key_value_get(f"paceline/{name}/{number}/{peer}", int(timeout_s * 1000))
        except jax.errors.JaxRuntimeError as error:
            raise PeerError(
                what=f"process {self.index} heard nothing of process {peer} ({self.machine(peer)}) about {name!r} for "
                f"{format_duration(timeout_s)}",
                why="it has ended, hangs, or runs other code; the others would wait for it for ever",
                fix="look at the end of that process's output, then start the run again with --resume",
            ) from error

    def fresh(self, name: str) -> str:
        """A name for exchanges that no earlier ones had, the same in every process."""
        return f"{name}-{next(self._numbers[f'fresh {name}'])}"

    def by_first(self, name: str, work: Callable[[], str]) -> str:
        """What process 0 makes of `work`, in every process; an error of a user's mistake is raised in all of them.

        Raises: what `work` raises in process 0. PeerError: process 0 says nothing in time.
        """
        if not self.several:
            return work()
        error: PacelineError | None = None
        said = ""
        if self.index == 0:
            try:
                said = json.dumps({"made": work()})
            except PacelineError as raised:
                error, said = raised, json.dumps({"error": raised.as_dict()})
        heard = json.loads(self.exchange(name, said)[0])
        if error is not None:
            raise error
        if "error" in heard:
            raise error_from(heard["error"])
        return heard["made"]

    def machine(self, index: int) -> str:
        """Where a process runs, for messages."""
        return self.machines[index] if index < len(self.machines) else "unknown machine"

    def same_everywhere(self, error: PacelineError) -> bool:
        """Whether all processes end with this error at this moment: then one of them says it for all."""
        if not self.several:
            return True
        own = f"{type(error).__name__}: {error}"
        self.ends_with(own)
        try:
            said = self.exchange("error", own, timeout_s=3.0)
        except (PeerError, jax.errors.JaxRuntimeError):
            return False
        same = all(text == own for text in said)
        if same and self.monitor is not None:
            self.monitor.finish()  # nobody need be told what all know
        if same and self.index == 0:
            time.sleep(_LAST_S)
        return same

    def ends_with(self, error: str) -> None:
        """This process is about to end with an error of its own, whatever becomes of the others."""
        self._error = error
        if self.monitor is not None:
            self.monitor.look_away()

    def tell_end(self) -> None:
        """Tell the others that this process ends with an error, so that they need not wait for it in vain."""
        if self.monitor is not None:
            self.monitor.fail(self._error or "its exit code says so")


_current: Processes = Processes()
_lock = threading.Lock()


def processes() -> Processes:
    """The processes of this run; one process if none was joined.

    A program that called `jax.distributed.initialize` itself is served too, without the watch over its peers.
    """
    global _current
    with _lock:
        if not _current.several and jax.distributed.is_initialized() and jax.process_count() > 1:
            _current = Processes(jax.process_index(), jax.process_count(), _client=_coordination_client())
        return _current


def initialize(
    coordinator: str | None = None,
    *,
    num_processes: int | None = None,
    process_index: int | None = None,
    devices_per_process: int | None = None,
    join_timeout_s: float = 60.0,
    peer_timeout_s: float = 30.0,
) -> Processes:
    """Join the processes of this run; call it first in a script, before anything uses a device.

    Without arguments it reads the environment of `paceline launch`, Slurm, OpenMPI or Kubernetes (JAX's own
    detection) and does nothing in a run of one process. The command line calls it by itself.

    Args:
      coordinator: ``host:port`` of process 0.
      num_processes: P.
      process_index: 0 to P - 1.
      devices_per_process: GPUs of this process, or CPU devices that it simulates. Default: under Slurm and OpenMPI
        one GPU a process if more are visible, else all that are visible.
      join_timeout_s: how long to wait for the others.
      peer_timeout_s: a process that is not heard from for so long is given up, by name.
    Returns: the processes.
    Raises: ProcessError: not all that is needed is known, the others do not come or were told otherwise. DeviceError: a
      device was used before, with the line. OptionError: a time limit that is not positive or without end.
    """
    global _current
    for flag, limit_s in (("--join-timeout", join_timeout_s), ("--peer-timeout", peer_timeout_s)):
        _check_limit(flag, limit_s)
    usual, sys.excepthook = sys.excepthook, _end_at_once  # a mistake in what follows ends with words and its exit code
    membership = find_membership(
        coordinator=coordinator,
        num_processes=num_processes,
        index=process_index,
        devices_per_process=devices_per_process,
    )
    if membership is None or _current.several or jax.distributed.is_initialized():
        sys.excepthook = usual
        return processes()
    machines = meet(membership, timeout_s=join_timeout_s, problem=_problem(membership))
    _start_jax(membership, peer_timeout_s)
    client = _coordination_client()
    host, _ = split_address(membership.coordinator)
    monitor = PeerMonitor(client, membership.index, machines=machines, timeout_s=peer_timeout_s, host=host)
    _current = Processes(membership.index, membership.num_processes, tuple(machines), monitor, client)
    monitor.start()
    # Before JAX's own, which waits for the others without telling them.
    atexit.register(leave, 0)
    return _current


def _check_limit(flag: str, limit_s: float) -> None:
    if 0 < limit_s < math.inf:
        return
    raise OptionError(
        what=f"{flag} {limit_s:g}",
        why="another process is waited for so long: none would be in time, or one that died would never be missed",
        fix=f"use {flag} with a number of seconds above 0, such as 60",
    )


def _start_jax(membership: Membership, peer_timeout_s: float) -> None:
    gpus = membership.gpus(visible_gpus())
    if visible_gpus() == 0 and membership.devices_per_process is not None:
        _simulate(membership.devices_per_process)
    if membership.index:
        wait_for_listener(membership.coordinator, timeout_s=_LISTENER_S)
    # It would take SIGTERM over from Python, for good: the process would not even end by it.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        membership.coordinator,
        membership.num_processes,
        membership.index,
        # Empty, not None: with None the detection of Slurm and OpenMPI would pick one GPU by itself.
        local_device_ids=gpus or [],
        cluster_detection_method="deactivate",
        initialization_timeout=60,
        # Ours speaks in words and comes first; JAX's own ends the process with a C++ trace.
        heartbeat_timeout_seconds=int(2 * peer_timeout_s) + 10,
        shutdown_timeout_seconds=_SHUTDOWN_S,
    )


def _simulate(count: int) -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", count)


def _problem(membership: Membership) -> PacelineError | None:
    """Why this process cannot join, known before it meets the others, so that all of them end with it."""
    from jax._src import xla_bridge  # jax.distributed asks it too

    try:
        membership.gpus(visible_gpus())
    except PacelineError as error:
        return error
    return _used_early(membership) if xla_bridge.backends_are_initialized() else None


def _used_early(membership: Membership) -> DeviceError:
    place = early_use(sys._getframe(2))
    return DeviceError(
        what=f"a device was used before the {membership.num_processes} processes of this run were joined"
        + (f": {place.file}:{place.line}: {place.code}" if place else ""),
        why="JAX fixes its devices at the first use, so this process would never see those of the others",
        fix="call paceline.initialize() first"
        + (f"; move line {place.line} of {place.file} below it" if place else ", before anything computes with JAX"),
    )


def _coordination_client() -> Any:
    from jax._src import distributed  # JAX has no public way to its key-value store

    return distributed.global_state.client


def leave(code: int) -> int:
    """End this process's part in the run; returns the exit code, or ends the process at once.

    After an error the others may be waiting in a collective: then Python's usual end would wait for them in JAX's
    shutdown barrier, so the process ends without it.
    """
    own = _current
    if not own.several:
        return code
    if code not in (0, INTERRUPTED, TERMINATED):
        exit_now(code)
    if own.monitor is not None:
        own.monitor.finish()
    try:
        jax.distributed.shutdown()
    except jax.errors.JaxRuntimeError:  # a peer has gone meanwhile; this process has done its part
        exit_now(code)
    if own.monitor is not None:
        own.monitor.stop()
    return code


def exit_now(code: int) -> NoReturn:
    """Tell the peers, then end the process without waiting for them."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a closed pipe must not keep the process
            stream.flush()
    if code != 0:
        _current.tell_end()
    os._exit(code)


def _end_at_once(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What Python does for an exception that nobody caught, then an end that waits for nobody."""
    _current.ends_with("".join(traceback.format_exception_only(kind, error)).strip())
    if isinstance(error, PacelineError):  # it says what to do; where this process was then tells nothing
        print(f"error: {error}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)
    exit_now(getattr(error, "exit_code", INTERRUPTED if issubclass(kind, KeyboardInterrupt) else 1))
