"""Measured time against size, for collectives on the devices at hand.

Owns: interpolation between measured sizes, the step to other sizes of group, the JSON form.
Not here: measuring (`network.measured`), the choice between curves and formulas (`network.cost`).
Invariant: what was measured is given back as it was; everything else says that it was extrapolated.

The file is one JSON object::

    {"version": 1, "device": "NVIDIA H100 80GB HBM3", "library": "nccl",
     "curves": [{"kind": "all-reduce", "devices": 8, "nodes": 1, "bytes": [4096, ...], "seconds": [0.00002, ...]}]}
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.base.errors import OptionError

VERSION = 1
MEASURED = "measured"
EXTRAPOLATED = "measured, other size of group"


@dataclass(frozen=True)
class Curve:
    """One collective over one group.

    Args:
      kind: as in `network.cost.KINDS`.
      devices: n of the group.
      nodes: over how many nodes, or processes that each have a machine, it went.
      sizes_bytes: S of the whole value, ascending.
      times_s: median time of each.
    """

    kind: str
    devices: int
    nodes: int
    sizes_bytes: tuple[float, ...]
    times_s: tuple[float, ...]

    def time_s(self, size: int | float) -> float:
        """Log-log between the measured sizes; the smallest's time below them, the fitted bandwidth above."""
        if size > self.sizes_bytes[-1]:
            return self.times_s[-1] + (size - self.sizes_bytes[-1]) * self.line()[1]
        logs = np.interp(math.log(size), np.log(self.sizes_bytes), np.log(self.times_s))
        return float(np.exp(logs))

    def line(self) -> tuple[float, float]:
        """Alpha [s], the time of the smallest message, and beta [s a byte] of ``t = c + beta S`` over the larger sizes.

        Least squares of relative errors over the upper half of the sizes, since protocols change on the way up; no beta
        below 0, and where the line would begin below 0, the time over the bytes of the largest.
        """
        sizes, times = np.asarray(self.sizes_bytes), np.asarray(self.times_s)
        upper = slice(len(sizes) // 2, None) if len(sizes) > 3 else slice(None)
        x, t = sizes[upper], times[upper]
        if len(x) == 1:
            return float(times[0]), float(t[0] / x[0])
        (start, beta), *_ = np.linalg.lstsq(np.stack([1 / t, x / t], axis=1), np.ones(len(t)), rcond=None)
        return float(times[0]), float(t[-1] / x[-1]) if start < 0 else max(float(beta), 0.0)


@dataclass(frozen=True)
class NetworkCurves:
    """All that was measured on one machine.

    Args:
      curves: one for each collective and group.
      device: as JAX names it.
      library: ``nccl``, ``gloo`` or ``memory`` (simulated devices of one process).
    """

    curves: tuple[Curve, ...]
    device: str
    library: str

    def lookup(self, kind: str, size: int | float, *, devices: int, nodes: int) -> tuple[float, str] | None:
        """Time [s] and whether it is measured or extrapolated; None where nothing measured speaks of such a group.

        A curve within a node says nothing of a network, nor the other way round.
        """
        fitting = [c for c in self.curves if c.kind == kind and (c.nodes > 1) == (nodes > 1)]
        for curve in fitting:
            if curve.devices == devices and curve.nodes == nodes:
                return curve.time_s(size), MEASURED
        if not fitting:
            return None
        nearest = min(fitting, key=lambda c: abs(math.log(c.devices / devices)))
        return self._stretched(nearest, size, devices=devices), EXTRAPOLATED

    def _stretched(self, curve: Curve, size: int | float, *, devices: int) -> float:
        """For another group: the smallest message's time by its steps, what is above it by a ring's factor."""
        alpha, _ = curve.line()
        steps = self._steps(devices) / self._steps(curve.devices)
        share = _share(devices) / _share(curve.devices)
        return alpha * steps + max(curve.time_s(size) - alpha, 0.0) * share

    def _steps(self, devices: int) -> int:
        """Of a ring; NCCL takes trees for short messages."""
        return math.ceil(math.log2(devices)) if self.library == "nccl" else devices - 1

    def as_dict(self) -> dict[str, Any]:
        """The JSON form of the module's docstring."""
        return {
            "version": VERSION,
            "device": self.device,
            "library": self.library,
            "curves": [
                {
                    "kind": curve.kind,
                    "devices": curve.devices,
                    "nodes": curve.nodes,
                    "bytes": list(curve.sizes_bytes),
                    "seconds": list(curve.times_s),
                }
                for curve in self.curves
            ],
        }

    def save(self, path: Path | str) -> None:
        """Write them."""
        Path(path).write_text(json.dumps(self.as_dict(), indent=1) + "\n")


def load_curves(path: Path | str) -> NetworkCurves:
    """Read what `NetworkCurves.save` wrote, or the ``network`` of a file of ``paceline scale --network``.

    Raises: OptionError: no such file, or another content.
    """
    try:
        document = json.loads(Path(path).read_text())
        held = document.get("network", document)
        if held is None:
            raise ValueError("it was written without --network")
        return curves_from(held)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise OptionError(
            what=f"{path} holds no measured network ({error})",
            why="predictions would rest on numbers that nobody measured",
            fix="write one with: paceline scale TASK --network --json FILE",
        ) from error


def curves_from(document: dict[str, Any]) -> NetworkCurves:
    """The inverse of `NetworkCurves.as_dict`.

    Raises: ValueError, KeyError, TypeError: something else.
    """
    if document["version"] != VERSION:
        raise ValueError(f"version {document['version']}, this program knows {VERSION}")
    return NetworkCurves(
        tuple(
            _checked(
                Curve(
                    c["kind"], c["devices"], c["nodes"], tuple(map(float, c["bytes"])), tuple(map(float, c["seconds"]))
                )
            )
            for c in document["curves"]
        ),
        document["device"],
        document["library"],
    )


def _checked(curve: Curve) -> Curve:
    rising = all(a < b for a, b in zip(curve.sizes_bytes, curve.sizes_bytes[1:], strict=False))
    if not (rising and curve.sizes_bytes and len(curve.sizes_bytes) == len(curve.times_s)):
        raise ValueError(f"sizes of {curve.kind} do not ascend, or lack times")
    if min(curve.times_s) <= 0 or curve.devices < 2:
        raise ValueError(f"times of {curve.kind} over {curve.devices} devices are not those of a collective")
    return curve


def _share(devices: int) -> float:
    return (devices - 1) / devices
