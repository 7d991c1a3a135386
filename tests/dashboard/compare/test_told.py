"""Sentences in results and reports are known again, and the forms by which they are known are the commands' own."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import paceline
from paceline.check.parity import causes
from paceline.dashboard.compare.told import AS_WRITTEN, FORMS, told
from paceline.insight.hardware.machine import parse_machine
from paceline.insight.plan.notes import data_notes
from paceline.measure.scale.cores import not_claimed
from paceline.train.loop import STOPPED

WRITERS = ("check", "cli", "insight", "measure", "train", "engine")


def written():
    """Every text of the packages that write results, with ``{}`` where a value is put in."""
    package = Path(paceline.__file__).parent
    for path in (file for name in WRITERS for file in (package / name).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_each_form_is_made_of_what_the_commands_write():
    """Phrase by phrase, since a command may put a sentence together: one that was reworded is found here."""
    sources = "\n".join(written())
    for key, form in FORMS.items():
        phrases = [part.strip(" '") for part in re.split(r"\{\w+\}|[,;:()]| over ", form)]
        lost = [phrase for phrase in phrases if len(phrase.split()) > 1 and phrase not in sources]
        assert not lost, f"{key}: {lost}"


@pytest.mark.parametrize(
    "text",
    [
        *(not_claimed(count, cores, quota=quota) for count, cores, quota in
          ((8, [], None), (8, [0], None), (8, [0, 1, 2, 3], None), (3, [0, 1, 2, 3], 2.5))),
        *(one.name for one in vars(causes).values() if isinstance(one, causes.Cause)),
        *STOPPED.values(),
        *data_notes(512, 100),
        *parse_machine("8xH100").notes,
        *parse_machine("16xA100", nodes=2).notes,
        *parse_machine("K80", link="NVLink 4").notes,
        *parse_machine("8xMI250X", nodes=2, network="400Gb per GPU").notes,
    ],
)  # fmt: skip
def test_what_the_commands_write_is_known(text):
    """Straight from the functions that make the sentences."""
    assert told(text).text == text
    assert told(text).key != AS_WRITTEN


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("8 simulated devices share 4 cores", "share_cores", {"devices": "8", "cores": "4 cores"}),
        ("per_device, fsdp, bfloat16, 4 microbatches; jax 0.10.0", "how_microbatches",
         {"how": "per_device, fsdp, bfloat16", "count": "4", "version": "0.10.0"}),
        ("all-reduce of params.w and more over NVLink 4: 30% of the communication is not hidden behind compute, 5.0% "
         "of the step", "exposed",
         {"collective": "all-reduce of params.w and more over NVLink 4", "exposed": "30%", "share": "5.0%"}),
        ("compute, most of it bound by arithmetic: no loss above 2%", "bound", {"side": "arithmetic", "share": "2%"}),
        ("image: one device against 2, 4 (cpu); 3 updates of 64 rows, one of them with 40", "setting_uneven",
         {"task": "image", "devices": "2, 4", "platform": "cpu", "updates": "3", "rows": "64", "fewest": "40"}),
        ("9 repeats in turn, of 10 to 20 steps; 3 min 20 s, of it compiling 4.2 s", "repeats_span",
         {"repeats": "9 repeats", "low": "10", "high": "20", "duration": "3 min 20 s", "compiling": "4.2 s"}),
        ("mean of means", "mean_of_means", {}),
    ],
)  # fmt: skip
def test_the_values_of_a_sentence_are_found(text, key, values):
    """Parts that are sentences themselves come as such; here their texts are compared."""
    found = told(text)
    assert found.key == f"compare.told.{key}"
    assert {name: getattr(value, "text", value) for name, value in found.values.items()} == values


def test_a_sentence_of_a_later_version_is_shown_as_it_is():
    found = told("the moon was full")
    assert (found.key, found.values, found.text) == (AS_WRITTEN, {"text": "the moon was full"}, "the moon was full")
