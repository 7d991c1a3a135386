"""docs/doctor.md says what the doctor does."""

from __future__ import annotations

from tests.docs.test_examples import blocks


def test_the_example_of_the_document_runs(capsys):
    """It prints the batch that does not split, with the two sizes that do."""
    for _, code in blocks("docs/doctor.md"):
        code = code.replace("paceline.simulate_devices(4)", "")  # this process has 8 already
        exec(compile(code, "docs/doctor.md", "exec"), {"__name__": "example"})
    out = capsys.readouterr().out
    assert "18 rows, which do not split over 4 devices" in out and "16 or 20" in out
