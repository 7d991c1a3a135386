"""The register of metric keys."""

from __future__ import annotations

import re

import pytest

from paceline.base.errors import LossError
from paceline.telemetry import metrics
from paceline.telemetry.metrics import METRICS, describe, evaluation_metric, user_metric


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_every_declared_metric_tells_what_the_page_shows(metric):
    """Key of the form group/name, a sentence, and a unit that agrees with the suffix of the key."""
    assert re.fullmatch(r"[a-z]+/[a-z_]+", metric.key)
    assert f"{metric.group}/{metric.name}" == metric.key
    assert metric.description.endswith(".")
    if metric.key.endswith("_s"):
        assert metric.unit.endswith("s")


def test_each_constant_is_registered_under_its_own_key():
    """No metric is declared outside the register, and no two share a key."""
    constants = [value for value in vars(metrics).values() if isinstance(value, metrics.Metric)]
    assert {metric.key: metric for metric in constants} == dict(METRICS)
    assert len(constants) == len(METRICS) == 25


def test_the_register_cannot_be_changed_in_passing():
    """A key that is declared at run time would be unknown to a reader in another process."""
    with pytest.raises(TypeError):
        METRICS["train/loss"] = METRICS["train/rows"]  # pyright: ignore[reportIndexIssue]  # the mistake under test


def test_a_metric_of_the_user_gets_a_key_under_train_and_under_evaluate():
    """By name: accuracy is better high, error low; the suffix of a name gives the unit."""
    assert (user_metric("accuracy").key, user_metric("accuracy").better) == ("train/accuracy", "higher")
    assert evaluation_metric("top5_error").better == "lower"
    assert user_metric("temperature").better == "none"
    assert user_metric("loss/kl").key == "train/loss/kl"
    assert user_metric("decode_s").unit == "s"
    assert user_metric("decode_tokens_per_s").unit == "tokens/s"
    assert user_metric("准确率", description="Share of rows.").description == "Share of rows."


def test_evaluation_of_loss_and_rows_gives_the_declared_metrics():
    """The same objects, descriptions included."""
    assert evaluation_metric("loss") is metrics.EVALUATE_LOSS
    assert evaluation_metric("rows") is metrics.EVALUATE_ROWS


def test_a_metric_that_would_overwrite_our_own_is_refused():
    """The fix names a key that is accepted."""
    with pytest.raises(LossError) as caught:
        user_metric("loss")
    assert "'task_loss'" in caught.value.fix
    assert user_metric("task_loss").key == "train/task_loss"


@pytest.mark.parametrize("name", ["", "top 5", "a/", "5th", "-x", "a\n", "_x"])
def test_a_name_that_makes_no_key_is_refused(name):
    """Spaces, control characters and empty parts would make keys that nothing finds again."""
    for make in (user_metric, evaluation_metric):
        with pytest.raises(LossError) as caught:
            make(name)
        assert "begin with a letter" in caught.value.fix


def test_any_key_can_be_described():
    """A page also shows runs of users and of other versions."""
    assert describe("train/loss") is metrics.TRAIN_LOSS
    assert describe("train/accuracy").description == "The task's own metric 'accuracy' of the training batch."
    assert describe("memory/swap_bytes") == metrics.Metric(
        "memory/swap_bytes", "bytes", "Not declared by Paceline.", "none"
    )
    assert describe("").unit == ""
