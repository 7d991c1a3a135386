"""The colours of the page hold WCAG AA in both themes: the ratios are computed here from the style sheet itself."""

from __future__ import annotations

import pytest

from tests.dashboard.colours import blocks, contrast

BACKGROUNDS = ("page", "surface", "raised")
TEXTS = ("text", "quiet", "accent", "good", "warn", "bad", "info")
GRAPHICS = ("edge", *(f"run-{number}" for number in range(1, 9)))


def test_contrast_is_computed_as_the_standard_says():
    """Black on white is 21, and #767676 on white is the well-known last grey that passes."""
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert 4.5 < contrast("#767676", "#ffffff") < 4.6


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("text", TEXTS)
def test_text_is_readable_on_every_background(theme, text):
    """4.5 to 1."""
    colours = blocks()[theme]
    worst = min(contrast(colours[text], colours[background]) for background in BACKGROUNDS)
    assert worst >= 4.5


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_on_a_filled_sign_are_readable(theme):
    """4.5 to 1: badges, and the button that is pressed."""
    colours = blocks()[theme]
    pairs = [(tone, f"{tone}-fill") for tone in ("good", "warn", "bad", "info")] + [("on-accent", "accent")]
    assert {pair: contrast(colours[pair[0]], colours[pair[1]]) for pair in pairs if
            contrast(colours[pair[0]], colours[pair[1]]) < 4.5} == {}  # fmt: skip


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("graphic", GRAPHICS)
def test_curves_and_borders_stand_out(theme, graphic):
    """3 to 1, as the standard asks of graphics and controls."""
    colours = blocks()[theme]
    assert min(contrast(colours[graphic], colours[background]) for background in ("page", "surface")) >= 3


def test_both_ways_into_the_dark_give_the_same_colours():
    """The system's choice and the reader's; and each theme names the same variables."""
    named = blocks()
    assert named["dark"] == named["system dark"]
    assert named["dark"].keys() == named["light"].keys()
