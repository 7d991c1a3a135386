"""Both languages have words for every sentence that the server can send, with the values that it sends."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import paceline
from paceline.dashboard.compare import told, words
from paceline.dashboard.compare.quantities import DECLARED, evaluation_quantities
from paceline.dashboard.follow.words import ENGLISH as FOLLOWED

TABLES = Path(paceline.__file__).parent / "dashboard" / "assets" / "words"
ENGLISH, CHINESE = (json.loads((TABLES / f"{name}.json").read_text("utf-8")) for name in ("en", "zh"))
_VALUE = re.compile(r"\{(\w+)(?:![rsa])?(?::[^{}]*)?\}")


def values(text):
    """Names of the values in a sentence, however they are written."""
    return set(_VALUE.findall(text))


def of_quantities():
    """Sentences of rows: their titles, and what they mean."""
    quantities = [*DECLARED, *(one for key in ("evaluate/loss", "evaluate/x") for one in evaluation_quantities(key))]
    return {one.key: one.values.keys() for each in quantities for one in (each.title_words, each.description_words)}


SENT = {
    **{key: values(text) for table in (FOLLOWED, words.ENGLISH, told.FORMS) for key, text in table.items()},
    **of_quantities(),
    told.AS_WRITTEN: {"text"},
}


@pytest.mark.parametrize("language", [ENGLISH, CHINESE], ids=["en", "zh"])
def test_every_sentence_of_the_server_has_words(language):
    assert len(SENT) > 200
    assert SENT.keys() - language.keys() == set()


@pytest.mark.parametrize("language", [ENGLISH, CHINESE], ids=["en", "zh"])
def test_the_words_take_the_values_that_the_server_sends(language):
    """None is forgotten, and none is asked for that does not come."""
    assert {key for key, sent in SENT.items() if values(language[key]) != set(sent)} == set()


def test_a_comparison_reads_the_same_on_the_page_as_in_the_terminal():
    """In English: but for titles of rows, which are shorter in a terminal."""
    said = {**words.ENGLISH, **told.FORMS, **{q.description_words.key: q.description for q in DECLARED}}
    assert {key: ENGLISH[key] for key in said} == said


def test_no_key_of_a_comparison_is_left_over():
    """Words that neither the server nor a module asks for are dead."""
    modules = "".join(path.read_text("utf-8") for path in TABLES.parent.rglob("*.js"))
    spelled = set(re.findall(r"[\"'`]((?:compare|bottleneck|straggler|problem)\.[\w.]*)", modules))
    asked = {
        key for key in ENGLISH if any(key == one or (one.endswith(".") and key.startswith(one)) for one in spelled)
    }
    ours = {key for key in ENGLISH if key.split(".")[0] in ("compare", "bottleneck", "straggler", "problem")}
    assert ours - SENT.keys() - asked == set()
