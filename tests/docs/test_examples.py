"""Every Python example in the documents runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from paceline.cli.main import main

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"(?:<!-- file: (?P<file>[\w.]+) -->\n)?```python\n(?P<code>.*?)```", re.DOTALL)


def blocks(document: str) -> list[tuple[str | None, str]]:
    """Name of the file that a block stands for (or None) and its code, in order."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return [(found["file"], found["code"]) for found in _BLOCK.finditer(text)]


_DOCUMENTS = ["README.md", "docs/tasks.md", "docs/verify.md", "docs/checkpoints.md", "docs/processes.md"]


@pytest.mark.parametrize("document", _DOCUMENTS)
def test_the_examples_of_a_document_run_in_order(document, tmp_path, monkeypatch, capsys):
    """The blocks of one document share their names, as a reader would type them; this process has 8 devices already."""
    monkeypatch.chdir(tmp_path)  # run folders that examples make
    names: dict[str, object] = {"__name__": "example"}
    code = [code.replace("paceline.simulate_devices(4)", "") for file, code in blocks(document) if file is None]
    assert code, "the document lost its examples"
    for block in code:
        exec(compile(block, document, "exec"), names)


def test_readme_example_fits_the_line(capsys):
    """w within 0.01 of 3 and b within 0.01 of 1: the data has no noise."""
    names: dict[str, object] = {"__name__": "example"}
    for _, block in blocks("README.md"):
        exec(compile(block.replace("paceline.simulate_devices(4)", ""), "README.md", "exec"), names)
    params = names["state"].params  # pyright: ignore[reportAttributeAccessIssue]: the example makes it
    assert abs(float(params["w"]) - 3) < 0.01
    assert abs(float(params["b"]) - 1) < 0.01
    assert "global_view on 4 devices" in capsys.readouterr().out


def test_the_example_file_trains_from_the_command_line(tmp_path, monkeypatch, capsys):
    """`docs/tasks.md`'s my_task.py learns the quadrants: accuracy well above the 0.5 of guessing, after 5 epochs."""
    [code] = [code for file, code in blocks("docs/tasks.md") if file == "my_task.py"]
    (tmp_path / "my_task.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    exit_code = main(["train", "my_task.py", "--devices", "4", "--epochs", "5", "--hidden", "32", "--progress", "none"])
    assert exit_code == 0
    accuracy = re.search(r"evaluation .*accuracy ([\d.]+)", capsys.readouterr().out)
    assert accuracy is not None and float(accuracy[1]) > 0.9


def test_the_links_of_the_documents_lead_somewhere():
    """Every relative link of README and docs names a file that exists (benchmarks.md is written by `make bench`)."""
    for document in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).resolve().exists(), f"{document.name}: {target}"
