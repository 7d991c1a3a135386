"""Audits say that replicas are equal to each other, a verification that programs compute what one device would."""

from __future__ import annotations

import pytest

from paceline.dashboard.compare.document import compare_document
from paceline.dashboard.compare.page import page
from paceline.dashboard.compare.subjects import load_subject
from paceline.dashboard.compare.text import compare_lines
from tests.dashboard.compare.made_results import verify_document, write
from tests.dashboard.made_runs import LiveRun, make_run

NO_PROOF = "no proof that they compute what one device would: paceline verify"


def compared(*paths):
    return compare_document([load_subject(path) for path in paths])


def values(document, key):
    [row] = [one for one in document["rows"] if one["key"] == key]
    return [cell["value"] for cell in row["cells"]]


def test_audits_tell_of_replicas_and_of_no_more(tmp_path):
    good = make_run(tmp_path / "good", steps=200)
    bad = make_run(tmp_path / "bad", steps=200, diverges_at=100)
    document = compared(good, bad)
    assert [one["verdict"] for one in document["fidelity"]] == ["replicas_equal", "replicas_differ"]
    assert [one["text"] for one in document["fidelity"]] == [
        f"4 audits: replicas equal, bit for bit; {NO_PROOF}",
        f"1 of 4 audits found replicas that are not equal; {NO_PROOF}",
    ]
    assert values(document, "unequal_audits") == [0, 1]


def test_a_run_and_a_verification_share_no_row_of_fidelity(tmp_path):
    """No difference in an audit is not the same as no difference from one device."""
    document = compared(make_run(tmp_path / "a", steps=100), write(tmp_path / "v.json", verify_document()))
    assert [one["verdict"] for one in document["fidelity"]] == ["replicas_equal", "equal"]
    assert values(document, "unequal_audits") == [0, None]
    assert values(document, "differences") == [None, 0]
    assert not any(row["verdict"] for row in document["rows"] if row["group"] == "fidelity")


def test_text_and_page_say_that_replicas_are_equal_and_nothing_more(tmp_path):
    document = compared(make_run(tmp_path / "a", steps=100))
    said = f"replicas equal: 2 audits: replicas equal, bit for bit; {NO_PROOF}"
    assert said in "\n".join(compare_lines(document, width=200))
    assert said in page(document)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([{"leaves": 62, "replicated": ["w"]}], "leaves split over the devices, which no audit compares: 61; "),
        ([], "bit for bit; no proof"),
        ("unknown", "leaves split over the devices are not compared; "),
        ([1], "leaves split over the devices are not compared; "),
    ],
)
def test_leaves_that_no_audit_compares_are_told(tmp_path, fields, said):
    """62 leaves, of which one is whole: 61 are split. An old run does not say how many."""
    run = make_run(tmp_path / "a", steps=50, extra={"placement": {"fields": fields}})
    assert said in compared(run)["fidelity"][0]["text"]


def test_an_audit_that_had_nothing_to_compare_tells_nothing(tmp_path):
    live = LiveRun(tmp_path / "a")
    none = {"audit/compared_leaves": 0, "audit/differing_leaves": 0}
    live.append({"kind": "audit", "step": 1, "time_s": 1.0, "values": none})
    found = compared(live.path)["fidelity"][0]
    assert (found["verdict"], found["text"]) == (
        "unknown", "1 audit: no leaf has replicas, so nothing was compared",
    )  # fmt: skip
