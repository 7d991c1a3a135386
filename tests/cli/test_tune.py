"""`paceline tune` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def test_tune_prints_flags_and_writes_a_document(paceline):
    """The linear recipe for two seconds on two devices: memory, trials, flags; the same in JSON, with the options."""
    ran = paceline("tune", "linear", "--devices", "2", "--seconds", "2", "--json", "out.json")
    assert (ran.code, ran.err) == (0, "")
    assert " rows a device fit" in ran.out
    assert "\ntried\n" in ran.out and "\nflags " in ran.out
    document = json.loads(Path("out.json").read_text())
    assert document["task"] == "linear" and document["config"]["options"]["seconds"] == 2.0
    assert document["memory"]["largest_rows"] <= 2048


@pytest.mark.parametrize(
    "arguments, fix",
    [
        (("--seconds", "0"), "--seconds 60"),
        (("--memory-gb", "-1"), "--memory-gb 80"),
        (("--memory-gb", "inf"), "--memory-gb 80"),
        (("--memory-gb", "1e-9"), "--placement zero1"),
        (("--bucket-mb", "0", "--scheme", "per_device"), "--bucket-mb 4"),
        (("--bucket-mb", "1e-9", "--scheme", "per_device"), "--bucket-mb 4"),
        (("--bucket-mb", "inf", "--scheme", "per_device"), "--bucket-mb 4"),
        (("--bucket-mb", "1"), "scheme='per_device'"),
        (("--noise-scale",), "scheme='per_device'"),
        (("--prefetch", "0"), "--prefetch 1 or more"),
        (("--batch", "0"), "--batch 1 or more"),
        (("--batch", "8192"), "--batch"),
        (("--batch", "255"), "--batch 254"),
        (("--second", "5"), "correct or remove it"),
        (("--devices", "99"), "--devices 8"),
    ],
)
def test_what_cannot_be_tuned_is_refused_with_the_fix(paceline, arguments, fix):
    """Exit code 2, what, why and fix on standard error."""
    devices = () if "--devices" in arguments else ("--devices", "2")
    ran = paceline("tune", "linear", *devices, "--seconds", "2", *arguments)
    assert ran.code == 2
    assert "\n  why: " in ran.err and fix in ran.err.partition("\n  fix: ")[2], ran.err
    assert "--remainder" not in ran.err, "tune has no such option"


def test_tune_without_a_target_names_the_recipes(refused):
    assert "paceline tune NAME" in refused("tune")


@pytest.mark.parametrize("flag, kept", [("--noise-scale", "noise_scale"), ("--bucket-mb", "bucket_bytes")])
def test_train_takes_the_options_of_the_engine(paceline, flag, kept):
    """`paceline train --noise-scale --bucket-mb 1` under per_device: run.json has both, the report the noise scale."""
    arguments = ("--scheme", "per_device", "--devices", "4", "--steps", "30", "--checkpoint-every", "off")
    value = () if flag == "--noise-scale" else ("1.5",)
    ran = paceline("train", "linear", *arguments, flag, *value, "--run", "run", "--progress", "none")
    assert ran.code == 0, ran.err
    assert json.loads(Path("run/run.json").read_text())["parallel"][kept] == (True if not value else 1_500_000)
    events = [json.loads(line) for line in Path("run/events-0.jsonl").read_text().splitlines()]
    last = [event["values"] for event in events if event["kind"] == "step"][-1]
    assert ("train/noise_scale_rows" in last) == (not value)
    assert ("\nnoise scale " in ran.out) == (not value)
