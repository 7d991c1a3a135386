"""The colours of the page's style sheet, and the contrast of two of them."""

from __future__ import annotations

import re
from pathlib import Path

import paceline

SHEET = (Path(paceline.__file__).parent / "dashboard" / "assets" / "style" / "colours.css").read_text()


def blocks() -> dict[str, dict[str, str]]:
    """The variables by theme."""
    found = re.findall(r"(:root[^{]*)\{([^}]*)\}", SHEET)
    named = {}
    for selector, body in found:
        name = {":root": "light", ':root[data-theme="dark"]': "dark"}.get(selector.strip(), "system dark")
        named[name] = dict(re.findall(r"--([\w-]+):\s*(#[0-9a-f]{6})", body))
    return named


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2.2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
