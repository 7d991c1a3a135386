"""Real clusters and a real network for tests of several processes.

Owns: the fixtures `slurm`, `mpi` and `network`.
Not here: how each is made (`slurm.py`, `mpi.py`, `network.py`); local processes, which need no fixture (`run.py`).
Invariant: a test that cannot have one is skipped with a reason that names what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.processes.mpi import Mpi, open_mpi
from tests.processes.network import Network, two_namespaces
from tests.processes.slurm import Slurm, slurm_of_this_machine


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    """A Slurm of one node, started once for each pytest process that asks and stopped at its end."""
    with slurm_of_this_machine() as slurm:
        yield slurm


@pytest.fixture(scope="session")
def mpi() -> Mpi:
    """Open MPI's mpirun."""
    return open_mpi()


@pytest.fixture
def network() -> Iterator[Network]:
    """Two machines' worth of network, joined by a cable; new for each test, since tests break it."""
    with two_namespaces() as network:
        yield network
