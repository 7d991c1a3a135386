"""Where the environment checks read from: files, variables, programs, names of machines, limits.

Owns: every look outside this process. Tests give another root folder, other variables and other programs.
Not here: what the answers mean (the checks).
Invariant: nothing here raises for what is missing, and every program has a time limit. Imports no jax.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_PACKAGES = re.compile(r"(jax|jaxlib|libtpu|jax[-_](cuda|rocm)\d*[-_](plugin|pjrt)|nvidia[-_](cuda[-_]runtime|nccl).*)")


@dataclass(frozen=True)
class Output:
    """What a program left.

    Args:
      code: its exit code, negative for a signal; None if it did not end in time.
      out, err: what it printed.
    """

    code: int | None
    out: str
    err: str


def packages_installed() -> dict[str, str]:
    """Versions of jax, its plugins and the CUDA libraries that came with them, by normalized name."""
    found: dict[str, str] = {}
    for package in importlib.metadata.distributions():
        name = (package.name or "").lower().replace("_", "-")
        if _PACKAGES.fullmatch(name):
            found.setdefault(name, package.version)  # the first on the path is the one that is imported
    return found


def extras_of_jax() -> frozenset[str]:
    """What can stand in ``pip install "jax[...]"``, from the metadata of the installed jax; empty if it has none."""
    try:
        return frozenset(importlib.metadata.metadata("jax").get_all("Provides-Extra") or ())
    except importlib.metadata.PackageNotFoundError:
        return frozenset()


def package_files(packages: Sequence[str], pattern: str) -> Iterator[Path]:
    """The files of installed packages, folder by folder; none of them is imported."""
    for package in packages:
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            yield from Path(folder).rglob(pattern)


def addresses_of(name: str) -> list[str]:
    """The addresses that a machine's name resolves to; none if it does not."""
    try:
        return list(dict.fromkeys(str(entry[4][0]) for entry in socket.getaddrinfo(name, None)))
    except (OSError, UnicodeError):
        return []


def is_own_address(address: str) -> bool:
    """Whether an address is one of this machine's: only such a one can be bound to."""
    try:
        found = socket.getaddrinfo(address, 0, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST)
        family, kind, _, _, place = found[0]
        with socket.socket(family, kind) as probe:
            probe.bind(place)
    except (OSError, UnicodeError):
        return False
    return True


def soft_limit(name: str) -> int | None:
    """The limit that holds, such as of ``NOFILE`` or ``MEMLOCK`` [bytes]; None: there is none."""
    value = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0]
    return None if value == resource.RLIM_INFINITY else value


def disk_space(path: Path) -> tuple[int, int] | None:
    """Bytes of the file system under a path, all and free; None if there is no such path."""
    try:
        stats = os.statvfs(path)
    except OSError:
        return None
    return stats.f_frsize * stats.f_blocks, stats.f_frsize * stats.f_bavail


@dataclass(frozen=True)
class System:
    """This machine, as the checks see it.

    Args:
      environment: variables.
      root: folder that stands for ``/``.
      cores: CPU cores that this process may run on.
      host_name: of this machine.
      addresses, owns, limit, space, packages, extras: see the functions above.
    """

    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    root: Path = Path("/")
    cores: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    host_name: str = field(default_factory=socket.gethostname)
    addresses: Callable[[str], list[str]] = addresses_of
    owns: Callable[[str], bool] = is_own_address
    limit: Callable[[str], int | None] = soft_limit
    space: Callable[[Path], tuple[int, int] | None] = disk_space
    packages: Callable[[], Mapping[str, str]] = packages_installed
    extras: Callable[[], frozenset[str]] = extras_of_jax

    def path(self, name: str) -> Path:
        """A file or folder of this machine, by its absolute name."""
        return self.root / name.lstrip("/")

    def read(self, name: str) -> str | None:
        """The text of a file; None if there is none or it may not be read."""
        try:
            return self.path(name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def names(self, folder: str) -> list[str]:
        """What a folder holds, sorted; nothing if there is none."""
        try:
            return sorted(entry.name for entry in self.path(folder).iterdir())
        except OSError:
            return []

    def variable(self, name: str) -> str:
        """Its text without blanks around; empty if it is not set."""
        return self.environment.get(name, "").strip()

    def number(self, name: str) -> int | None:
        """A variable that counts; None if it is not set or is no number."""
        text = self.variable(name)
        return int(text) if text.isdigit() else None

    def run(
        self, command: list[str], *, timeout_s: float = 10.0, variables: Mapping[str, str] | None = None
    ) -> Output | None:
        """What a program prints; None if there is no such program. It is killed with its children after the time.

        Args:
          variables: set for it beside the environment.
        """
        environment = {**self.environment, **(variables or {})}
        try:
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                start_new_session=True,
            )  # fmt: skip
        except OSError:
            return None
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            _kill(process)
            return Output(None, "", "")
        return Output(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))

    def python(
        self, code: str, *, timeout_s: float = 20.0, variables: Mapping[str, str] | None = None
    ) -> Output | None:
        """What this Python prints when it runs some code."""
        return self.run([sys.executable, "-c", code], timeout_s=timeout_s, variables=variables)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a program and what it started; one that not even SIGKILL ends, in a broken driver, is left behind."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=1.0)
    except (OSError, subprocess.TimeoutExpired):
        pass
