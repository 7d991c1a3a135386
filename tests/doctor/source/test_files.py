"""Which files are read, and what is said of one that cannot be."""

from __future__ import annotations

import pytest

from paceline.doctor.source import files
from paceline.doctor.source.check import check_source
from tests.doctor.source.reading import only, troubles, write

GONE = "import jax\nx = jax.tree_map(len, [])\n"

UNREADABLE = {
    "a syntax error": (b"x = 1\ndef f(:\n", "Python cannot read the file", "correct the syntax", 2),
    "not UTF-8": (b"x = 1\ny = '\xe9'\n", "Python cannot read the file", "UTF-8", None),
    "a null byte": (b"x = 1\x00\n", "Python cannot read the file", "correct the syntax", None),
    "empty": (b"  \n\n", "the file is empty", "define task()", None),
    "nested too deeply": (b"x = " + b"(" * 5000 + b")" * 5000, "Python cannot read the file", "correct", None),
}


@pytest.mark.parametrize(("content", "what", "fix", "line"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_file_that_cannot_be_read_is_an_error(tmp_path, content, what, fix, line):
    """What, file, fix and where there is one the line; never a traceback."""
    (tmp_path / "step.py").write_bytes(content)
    found = only(check_source(tmp_path / "step.py"))
    assert found.level == "error" and what in found.what and found.fix is not None and fix in found.fix
    assert found.file == str(tmp_path / "step.py")
    assert line is None or found.line == line


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    found = only(check_source(tmp_path / "nowhere.py"))
    assert found.level == "error" and "cannot be read" in found.what


def test_a_huge_file_is_said_not_to_be_read(tmp_path, monkeypatch):
    """A limit of 20 bytes stands for the real one; never ok."""
    monkeypatch.setattr(files, "LARGEST_BYTES", 20)
    found = only(check_source(write(tmp_path, GONE)))
    assert found.level == "warning" and "not read" in found.what


def test_an_encoding_that_the_file_declares_is_used(tmp_path):
    """Latin-1 with its cookie is fine Python."""
    (tmp_path / "step.py").write_bytes(b"# -*- coding: latin-1 -*-\nname = '\xe9'\n")
    assert not troubles(tmp_path / "step.py")


def test_modules_beside_the_file_are_read_too(tmp_path):
    """Those it imports, and what they import; each finding names its own file. Others are left alone."""
    write(tmp_path, GONE, name="deep.py")
    write(tmp_path, GONE, name="other.py")
    write(tmp_path, "from . import deep\nimport numpy\n", name="model.py")
    found = only(troubles(write(tmp_path, "import model\nimport step\n")))
    assert found.file == str(tmp_path / "deep.py") and found.line == 2


def test_what_was_read_is_said_when_nothing_is_wrong(tmp_path):
    write(tmp_path, "x = 1\n", name="model.py")
    found = only(check_source(write(tmp_path, "import model\n")))
    assert found.level == "ok" and "2 files read" in found.what
