"""Both languages say everything that the page asks them for."""

from __future__ import annotations

import json
import re
from pathlib import Path

import paceline

ASSETS = Path(paceline.__file__).parent / "dashboard" / "assets"
ENGLISH, CHINESE = (json.loads((ASSETS / "words" / f"{name}.json").read_text("utf-8")) for name in ("en", "zh"))


def test_both_languages_have_the_same_keys():
    assert ENGLISH.keys() == CHINESE.keys()


def test_both_languages_take_the_same_values():
    """A value that one language forgets is a fact that its readers do not get."""
    names = re.compile(r"\{(\w+)\}")
    assert {key for key in ENGLISH if set(names.findall(ENGLISH[key])) != set(names.findall(CHINESE[key]))} == set()


def test_every_key_that_a_module_spells_out_has_words():
    """Keys with a part put in, such as `state.${state}`, are checked by what is before the part."""
    sources = [path.read_text("utf-8") for path in [*ASSETS.rglob("*.js"), ASSETS / "index.html"]]
    asked = {key for text in sources for key in re.findall(r"""\bwords\(\s*["']([\w.]+)["']""", text)}
    asked |= {key for text in sources for key in re.findall(r"""data-word(?:-label)?="([\w.]+)\"""", text)}
    begun = {key for text in sources for key in re.findall(r"\bwords\(\s*`([\w.]+)\$\{", text)}
    assert len(asked) > 20, "the pattern no longer finds the page's words"
    assert asked - ENGLISH.keys() == set()
    assert {start for start in begun if not any(key.startswith(start) for key in ENGLISH)} == set()


def test_chinese_is_written_in_chinese():
    """All but what is a name or a unit: other texts without Chinese are but signs around their values."""
    plain = {key for key, text in CHINESE.items() if not re.search(r"[\u4e00-\u9fff]", text)}
    left = {key: re.sub(r"\{\w+\}|\bjax\b", "", CHINESE[key]) for key in plain if ENGLISH[key] != CHINESE[key]}
    assert {key for key, text in left.items() if re.search(r"[A-Za-z]", text)} == set()
