"""A script of a user's: joins the others, trains the network of `mlp.py`, writes the parameters.

Usage: library.py FOLDER STEPS SCHEME...: process 0 writes FOLDER/SCHEME.npz.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import paceline


def main(folder: Path, steps: int, schemes: list[str]) -> None:
    """Joins first: what follows uses devices."""
    team = paceline.initialize(devices_per_process=1)

    from tests.processes.mlp import SCHEMES, trained

    for name in schemes:
        found = trained(SCHEMES[name], steps=steps, devices=None)
        if team.index == 0:
            np.savez(folder / f"{name}.npz", **found)  # pyright: ignore[reportArgumentType]: names are keys here
    print(f"process {team.index} of {team.count}: done")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
