"""What of a plan may stand beside a measurement."""

from __future__ import annotations

import json

import pytest

from paceline.base.errors import OptionError
from paceline.engine.parallel import Parallel
from paceline.measure.scale.prediction import Planned, Prediction, read_plan
from paceline.measure.scale.result import make_scaling, predicted_text
from paceline.measure.scale.rounds import Setting
from tests.measure.scale.samples import stages

CURVE = [
    {"devices": 1, "samples_per_s": 10},
    {"devices": 8, "samples_per_s": 70.0, "efficiency": 0.9, "efficiency_low": 0.0, "efficiency_high": 0.95},
]
PLAN = {"machine": "8 x A100 SXM 80 GB", "rows_per_device": 32, "curve": CURVE}


@pytest.fixture
def planned(tmp_path):
    """`planned({...}, config)`: the plan that the file says, with some entries changed."""

    def read(change=None, config=None):
        path = tmp_path / "plan.json"
        path.write_text(json.dumps({"plan": PLAN | (change or {}), "config": config or {}}))
        return read_plan(str(path))

    return read


def test_a_prediction_stands_beside_the_rows_a_device_that_it_is_for(planned):
    """32 rows: 8 devices with 256, one with 32; not the whole 256 on one (strong scaling), nor K = 2."""
    plan = planned()
    one = Setting(1, 32)
    assert plan.at(Setting(8, 256), one=one) == Prediction(70.0, 0.9, 0.0, 0.95)
    assert plan.at(one, one=one) == Prediction(10.0, None, None, None)
    assert [plan.at(other, one=one) for other in (Setting(1, 256), Setting(8, 128), Setting(2, 64))] == [None] * 3


def test_an_efficiency_against_another_baseline_is_left_out(planned):
    """Strong scaling: one device with all 256 rows, where that of the plan has 32. S_K stands, the figure's E_K not."""
    assert planned().at(Setting(8, 256), one=Setting(1, 256)) == Prediction(70.0, None, None, None)
    settings = [Setting(1, 256), Setting(8, 256)]
    measured = {setting: stages(local=1.0, barrier=1.0, step=1.0, feed=1.0, fit=1.0) for setting in settings}
    scaling = make_scaling("strong", settings, measured=measured, not_claimed={}.get, planned=planned(), noise=None)
    assert [point.predicted for point in scaling.points] == [None, Prediction(70.0, None, None, None)]
    assert predicted_text(scaling.points[1].predicted) == "70 samples/s"


EIGHT = Setting(8, 256)


def told(plan, *, settings=(EIGHT,), kind="NVIDIA A100-SXM4-80GB", task_options=None, **parallel):
    return plan.differences(list(settings), parallel=Parallel(**parallel), kind=kind, task_options=task_options or {})


def test_a_plan_of_the_same_is_beside_it_without_a_note(planned):
    """The device by the name that JAX has for it."""
    own = {"scheme": "global_view", "precision": "float32", "placement": "replicated", "accumulation": 1}
    assert told(planned({"parallel": own})) == ()


def test_how_a_plan_differs_is_said(planned):
    """Step, task, devices, rows."""
    plan = planned({"parallel": {"precision": "bfloat16", "accumulation": 4, "bucket_bytes": None, "donate": True}},
                   {"recipe": {"points": 64}})  # fmt: skip
    (line,) = told(plan, kind="NVIDIA H100 80GB HBM3", task_options={"points": 32})
    assert line == (
        "the plan is of something else: precision 'bfloat16' there, 'float32' here; accumulation 4 there, 1 here; "
        "points 64 there, 32 here; the devices there are others than here (NVIDIA H100 80GB HBM3)"
    )
    (line,) = told(planned(), settings=[Setting(1, 256), Setting(8, 256)])
    assert line == "the plan has 32 rows a device, so it says nothing of K = 1 with batch 256"


@pytest.mark.parametrize(
    ("machine", "kind", "differs"),
    [
        ("2 x this CPU (model, 2 threads)", "cpu", False),
        ("8 x A100 SXM 80 GB", "cpu", True),
        ("4 nodes of 8 x A100 SXM 80 GB", "NVIDIA A100-SXM4-80GB", False),
        ("8 x A100 SXM 80 GB", "some device", True),
    ],
)
def test_kinds_of_devices_are_compared(planned, machine, kind, differs):
    """Simulated ones are this CPU's."""
    assert ("others than here" in "".join(told(planned({"machine": machine}), kind=kind))) is differs


def test_the_plan_of_another_task_is_refused(planned):
    """A file is known by its name, wherever it lies."""
    planned().check_target("image")
    planned(config={"target": "a/my_task.py"}).check_target("b/my_task.py")
    with pytest.raises(OptionError) as error:
        planned(config={"target": "linear"}).check_target("image")
    assert "paceline plan image --on MACHINE" in error.value.fix


@pytest.mark.parametrize(
    "content",
    [None, "{", "[1]", "{}", '{"plan": null}', *({"plan": PLAN | change} for change in (
        {"curve": []}, {"curve": [{"devices": 1}]}, {"curve": [7]}, {"rows_per_device": None}, {"curve": None}
    )), {"plan": {"curve": CURVE, "rows_per_device": 1}}, {"plan": PLAN, "config": 3}],
)  # fmt: skip
def test_a_file_without_a_curve_is_refused_with_how_to_make_one(tmp_path, content):
    """Not there, no JSON, no curve, a curve without throughput, no machine, no rows."""
    path = tmp_path / "plan.json"
    if content is not None:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(OptionError) as error:
        read_plan(str(path))
    assert error.value.fix == "write it with paceline plan TASK --on MACHINE --json FILE"


def test_a_plan_without_options_of_its_task_says_nothing_of_them():
    """An older file."""
    assert told(Planned("1 x A100 SXM 80 GB", 32, {}), task_options={"a": 1}) == ()
