"""A command line in this process, in a folder of its own."""

from __future__ import annotations

import re
import sys
from typing import NamedTuple

import jax
import pytest

from paceline.cli.main import main


class Ran(NamedTuple):
    """What a command left: exit code, standard output, standard error."""

    code: int
    out: str
    err: str


_ERROR = re.compile(r"error: .+\n  why: .+\n  fix: .+\n")


@pytest.fixture(scope="session", autouse=True)
def all_devices():
    """Use a device first: a command run in this process would fix their number at its own."""
    return jax.devices()


@pytest.fixture
def paceline(tmp_path, monkeypatch, capsys):
    """`paceline("train", "linear", ...)` in an empty folder that is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # a user's file adds its folder

    def run(*arguments: str) -> Ran:
        code = main(list(arguments))
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return run


@pytest.fixture
def refused(paceline):
    """`refused("train", ...)`: exit code 2, and standard error holds what, why and fix and nothing else; returns it."""

    def run(*arguments: str) -> str:
        ran = paceline(*arguments)
        assert ran.code == 2
        assert _ERROR.fullmatch(ran.err), ran.err
        assert ran.out == ""
        return ran.err

    return run
