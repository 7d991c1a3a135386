"""A network of two machines on one: two namespaces joined by a cable that can be slow, lossy or cut.

Owns: the namespaces, their host names and addresses, bandwidth, loss and partition of the cable between them.
Not here: the processes that run on its two sides (`run.start(command=network.command)` starts them).
Invariant: nothing of the machine's own network is touched, and nothing is left after the `with` block.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

import pytest

from tests.processes.need import require_root, require_tools
from tests.processes.run import child_environment, end_session, finish

_TOOLS = {"ip": "iproute2", "tc": "iproute2", "iptables": "iptables", "unshare": "util-linux"}
_CABLE = "cable"  # the device's name on both sides
_FILES = Path("/etc/netns")  # `ip netns exec NAME` shows the files of /etc/netns/NAME as those of /etc


@dataclasses.dataclass(frozen=True)
class Network:
    """Sides 0 and 1, each like a machine of its own: own host name, own /etc/hosts, own loopback, one cable.

    Files and processes are shared: a path means the same on both sides, and a Popen's pid is the command's own.
    """

    names: tuple[str, str]
    addresses: tuple[str, str] = ("10.77.0.1", "10.77.0.2")
    started: list[subprocess.Popen] = dataclasses.field(default_factory=list)

    def command(self, side: int, command: Sequence[str]) -> list[str]:
        """The command that runs `command` on one side. It replaces itself, so signals reach `command`."""
        # A namespace of networks has no name of its own: Gloo binds to what the host name resolves to.
        rename = f'echo {self.names[side]} > /proc/sys/kernel/hostname && exec "$@"'
        return ["ip", "netns", "exec", self.names[side], "unshare", "--uts", "sh", "-c", rename, "sh", *command]

    def popen(
        self,
        side: int,
        command: Sequence[str],
        *,
        env: Mapping[str, str | None] | None = None,
        stdout: int | IO = subprocess.PIPE,
        stderr: int | IO = subprocess.STDOUT,
    ) -> subprocess.Popen[str]:
        """Starts a command on one side; it is killed, with its children, at the end of the test.

        Args:
          env: changes to this process's environment; None removes a variable.
          stdout: a pipe by default, which the test must read (`communicate`), or the process stops at 64 kB.
        """
        popen = subprocess.Popen(
            self.command(side, command),
            env=child_environment(env),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )
        self.started.append(popen)
        return popen

    def bandwidth(self, mbit: float | None) -> None:
        """Limits each direction of the cable to `mbit` Mbit/s, or not at all (None)."""
        for side in (0, 1):
            if mbit is None:
                # Nothing to remove is no fault here.
                self._on(side, "tc", "qdisc", "del", "dev", _CABLE, "root", check=False)
            else:
                limit = ["tbf", "rate", f"{mbit}mbit", "burst", "32kb", "latency", "400ms"]
                self._on(side, "tc", "qdisc", "replace", "dev", _CABLE, "root", *limit)

    def loss(self, percent: float) -> None:
        """Loses this share of the packets of each direction, at random; 0 loses none."""
        for side in (0, 1):
            self._on(side, "iptables", "-F", "loss")
            if percent:
                chance = ["-m", "statistic", "--mode", "random", "--probability", f"{percent / 100:.4f}"]
                self._on(side, "iptables", "-A", "loss", *chance, "-j", "DROP")

    def lost(self, side: int) -> int:
        """Packets towards one side that `loss` took since it was last called."""
        shown = _call("ip", "netns", "exec", self.names[side], "iptables", "-vnxL", "loss")
        return sum(int(line.split()[0]) for line in shown.splitlines() if " DROP " in line)

    def partition(self) -> None:
        """Cuts the cable as a dead switch would: packets vanish, connections stay open, nobody is told."""
        # On arrival: dropped at departure, a sender would get an error at once.
        for side in (0, 1):
            self._on(side, "iptables", "-F", "partition")
            self._on(side, "iptables", "-A", "partition", "-j", "DROP")

    def heal(self) -> None:
        """Joins the cable again."""
        for side in (0, 1):
            self._on(side, "iptables", "-F", "partition")

    def _on(self, side: int, *command: str, check: bool = True) -> None:
        _call("ip", "netns", "exec", self.names[side], *command, check=check)


def _call(*command: str, check: bool = True) -> str:
    ended = finish(command, env=child_environment(), timeout_s=20)
    if check and ended.returncode:
        raise OSError(f"{' '.join(command)}: {ended.stderr.strip() or ended.returncode}")
    return ended.stdout


@contextmanager
def two_namespaces() -> Iterator[Network]:
    """Makes both sides and their cable (about 0.2 s), and removes them; skips with a reason where it cannot."""
    require_root("a network of namespaces")
    require_tools(_TOOLS)
    # A device name has 15 characters, and several pytest processes may each have a network.
    token = secrets.token_hex(4)
    network = Network((f"pl-{token}-0", f"pl-{token}-1"))
    with ExitStack() as stack:
        # Every feature is tried here, so that a kernel without one skips the test rather than fails it.
        try:
            _join(stack, network)
            network.bandwidth(1000)
            network.loss(50)
        except OSError as error:
            pytest.skip(f"this machine makes no such network: {error}")
        network.bandwidth(None)
        network.loss(0)
        yield network


def _join(stack: ExitStack, network: Network) -> None:
    stack.callback(_remove_folder, _FILES)
    hosts = [f"{address} {name}\n" for address, name in zip(network.addresses, network.names, strict=True)]
    for name in network.names:
        stack.callback(_remove_side, name)
        (_FILES / name).mkdir(parents=True)
        (_FILES / name / "hosts").write_text("".join(["127.0.0.1 localhost\n", *hosts]))
        _call("ip", "netns", "add", name)
    stack.callback(_end_all, network)
    first, second = network.names
    _call("ip", "link", "add", _CABLE, "netns", first, "type", "veth", "peer", "name", _CABLE, "netns", second)
    for side, name in enumerate(network.names):
        _call("ip", "-n", name, "address", "add", f"{network.addresses[side]}/24", "dev", _CABLE)
        for device in ("lo", _CABLE):
            _call("ip", "-n", name, "link", "set", device, "up")
        # Chains of our own, so that loss and partition are changed without regard to each other.
        for chain in ("partition", "loss"):
            network._on(side, "iptables", "-N", chain)
            network._on(side, "iptables", "-A", "INPUT", "-i", _CABLE, "-j", chain)


def _end_all(network: Network) -> None:
    for popen in network.started:
        end_session(popen)
        if popen.stdout is not None:
            popen.stdout.close()
    for name in network.names:
        for pid in _call("ip", "netns", "pids", name, check=False).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def _remove_side(name: str) -> None:
    _call("ip", "netns", "del", name, check=False)
    (_FILES / name / "hosts").unlink(missing_ok=True)
    _remove_folder(_FILES / name)


def _remove_folder(folder: Path) -> None:
    # Not when it holds something: then another pytest process, or the machine's owner, uses it too.
    with suppress(OSError):
        folder.rmdir()
