"""A result to print, draw and write, made from numbers that a pencil can follow."""

from __future__ import annotations

from paceline.measure.scale.prediction import Planned, Prediction
from paceline.measure.scale.result import PlanNotes, ScaleResult, make_scaling
from paceline.measure.scale.rounds import Setting
from paceline.measure.scale.subject import Noise
from paceline.measure.scale.trace import DeviceTimes
from tests.measure.scale.samples import stages

SETTINGS = [Setting(1, 10), Setting(2, 20), Setting(4, 40)]
SHARE = "4 simulated devices share 2 cores"


MACHINE = "2 x A$1$00"


def result(*, task="a <task>", noise_rows=None, predicted=None, unclaimed=None, shares_cores=False):
    """One device: 12.5 rows a second; two: 22.22, 88.9 %; four are measured for throughput only."""
    measured = {
        SETTINGS[0]: stages(local=0.60, step=0.62, feed=0.70, fit=0.80, wait=0.05, latency=2.8),
        SETTINGS[1]: stages(local=0.64, barrier=0.66, step=0.76, feed=0.80, fit=0.90, wait=0.04, latency=2.4),
        SETTINGS[2]: {name: stages(local=1, step=1, feed=1.5, fit=1.6, latency=6.0)[name] for name in ("feed", "fit")},
    }
    reasons = {4: SHARE} if unclaimed is None else unclaimed
    noise = Noise(noise_rows, steps=100, relative_error=0.12) if noise_rows else Noise(None, "3 steps seen")
    scaling = make_scaling(
        "weak", SETTINGS, measured=measured, not_claimed=reasons.get, noise=noise,
        planned=Planned(MACHINE, 10, predicted or {2: Prediction(24.0, 0.93, 0.9, 0.95)}), shares_cores=shares_cores,
    )  # fmt: skip
    times = [DeviceTimes(0, 0.6, 0.2, 0.1), DeviceTimes(1, 0.5, 0.3, 0.2)]
    return ScaleResult(
        task, "simulated CPU devices, 2 cores", ("global_view & more",), 6, 12.0, (scaling,),
        noise=noise,
        traces={2: times},
        network={"curves": []}, network_lines=("collective  size",),
        plan=PlanNotes(MACHINE, ("the plan is of something else: precision bfloat16 there, float32 here",)),
    )  # fmt: skip
