"""docs/watch-api.md: each example is asked for, and has the keys of the answer."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import pytest

from paceline.dashboard.follow.cursor import ANEW, LONGEST_CURSOR
from paceline.dashboard.follow.library import Library
from paceline.dashboard.serve import security, slow
from paceline.dashboard.serve.api import MAX_EVENTS, MAX_NAMES
from paceline.dashboard.serve.app import MAX_STREAMS, make_app
from tests.dashboard.made_runs import make_run
from tests.dashboard.serve.apart import run_apart

TEXT = (Path(__file__).parents[3] / "docs" / "watch-api.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"^`GET (\S+)`\n```json\n(.*?)```", TEXT, re.DOTALL | re.MULTILINE))
MORE = "…"


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    """`answer("/api/runs")`: the JSON of the runs that the document speaks of."""
    root = tmp_path_factory.mktemp("here") / "runs"
    make_run(root / "image-1", steps=200, nan_at=(120,), diverges_at=150, processes=2)
    verified = {"ok": True, "results": [], "subject": "linear", "config": {"target": "linear"}}
    (root / "verify.json").write_text(json.dumps(verified))
    library = Library(root)
    library.read_all()
    application = make_app(library)

    def ask(address):
        async def get():
            transport = httpx.ASGITransport(application)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8070") as client:
                return (await client.get(address)).json()

        return run_apart(get)

    yield ask
    library.close()


def compare(example, found, *, place):
    """The same keys and types; lists by their first items; an ellipsis stands for more keys."""
    if isinstance(example, dict):
        assert isinstance(found, dict), place
        if MORE in example:
            assert example.keys() - {MORE} <= found.keys(), place
        else:
            assert example.keys() == found.keys(), place
        for key in example.keys() - {MORE}:
            compare(example[key], found[key], place=f"{place}.{key}")
    elif isinstance(example, list):
        assert isinstance(found, list) and bool(example) == bool(found), place
        for one, other in zip(example[:1], found[:1], strict=True):
            compare(one, other, place=f"{place}[0]")
    elif isinstance(example, bool | str | None):
        assert type(example) is type(found), f"{place}: {found!r}"
    else:
        assert isinstance(found, int | float), f"{place}: {found!r}"


@pytest.mark.parametrize("address", EXAMPLES)
def test_each_example_has_the_keys_of_the_answer(answer, address):
    """No key is left out of the document and none is made up."""
    compare(json.loads(EXAMPLES[address]), answer(address), place=address)


def test_every_json_document_has_an_example():
    """But the comparison, which has a page of its own."""
    assert {address.partition("?")[0] for address in EXAMPLES} == {
        f"/api/{name}" for name in ("runs", "run", "series", "pipeline", "replicas", "events")
    }


def test_every_address_of_the_server_is_in_the_document(tmp_path):
    """A route that is added is described."""
    routes = [route.path for route in make_app(Library(tmp_path)).routes]
    for path in routes:
        assert path in ("/", "/assets/{name:path}") or f"GET {path}" in TEXT, path


def test_the_bounds_in_the_document_are_those_of_the_server():
    """Numbers that a program must know."""
    assert f"{MAX_NAMES} at most" in TEXT
    assert f"at most {MAX_EVENTS}" in TEXT
    assert f"{MAX_STREAMS} streams are open" in TEXT
    target_kib, header_kib = security.MAX_TARGET_BYTES >> 10, security.MAX_HEADER_BYTES >> 10
    assert f"more than {target_kib} KiB of address; more than {header_kib} KiB or 100 headers" in TEXT
    assert f"within {slow.REQUEST_S:.0f} s" in TEXT and f"takes nothing for {slow.TAKE_S:.0f} s" in TEXT
    assert f"longer than {LONGEST_CURSOR >> 10} KiB" in TEXT and f"`cursor={ANEW}`" in TEXT
    assert security.MAX_HEADERS == 100
