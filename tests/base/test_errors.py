"""The family of errors that a user can mend."""

from __future__ import annotations

import pytest

from paceline.base import errors
from paceline.base.errors import NonFiniteError, PacelineError, RunFolderError, nearest

FAMILY = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PacelineError)]


@pytest.mark.parametrize("kind", FAMILY)
def test_every_error_tells_what_why_and_fix(kind):
    """As words for the terminal, and as data for the page."""
    error = kind(what="a folder", why="it matters", fix="take another")
    assert str(error) == "a folder\n  why: it matters\n  fix: take another"
    assert error.as_dict() == {"kind": kind.__name__, "what": "a folder", "why": "it matters", "fix": "take another"}
    assert isinstance(error, PacelineError)
    assert kind.__doc__


def test_a_mistake_exits_with_2_and_a_failed_run_with_1():
    """So that a script can tell a command to mend from a result to look at."""
    assert RunFolderError.exit_code == 2
    assert NonFiniteError.exit_code == 1


def test_an_error_without_a_way_out_cannot_be_raised():
    """All three words are required, by name."""
    with pytest.raises(TypeError):
        PacelineError(what="a", why="b")  # pyright: ignore[reportCallIssue]  # the mistake under test


def test_the_nearest_word_is_offered_only_when_it_is_near():
    """A misspelling is answered, another word is not."""
    assert nearest("bacth", ["batch", "steps"]) == ", perhaps 'batch'"
    assert nearest("zebra", ["batch", "steps"]) == ""
    assert nearest("batch", []) == ""
