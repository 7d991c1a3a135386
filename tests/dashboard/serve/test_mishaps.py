"""What goes wrong with one run, one subject, one thread or one stream stays with it."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time

import anyio
import httpx
import pytest
from starlette.datastructures import QueryParams

from paceline.base.errors import RunFolderError
from paceline.dashboard.follow import library as library_module
from paceline.dashboard.follow.library import Library
from paceline.dashboard.serve import api, app, results
from paceline.dashboard.serve.app import make_app
from paceline.dashboard.serve.assets import Assets
from tests.dashboard.made_runs import LiveRun, make_run, write_json
from tests.dashboard.serve.apart import run_apart

HOME = "http://127.0.0.1:8070"


@pytest.fixture
def library(tmp_path):
    """Two runs that were read."""
    make_run(tmp_path / "runs" / "first", steps=5)
    make_run(tmp_path / "runs" / "group" / "second", steps=5)
    library = Library(tmp_path / "runs")
    library.read_all()
    yield library
    library.close()


@pytest.fixture
def page(tmp_path):
    """A page of no files."""
    (tmp_path / "assets").mkdir()
    return Assets(tmp_path / "assets", tmp_path / "assets" / "plotly.min.js")


@pytest.fixture
def get(library, page):
    """`get("/api/runs")`: the answer of the application, without a network."""
    application = make_app(library, assets=page)
    return lambda path, **options: answer_of(application, path, **options)


def answer_of(application, path, **options):
    """The answer of an application; what it raises is its server's."""

    async def ask():
        transport = httpx.ASGITransport(application, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=HOME) as client:
            return await client.get(path, **options)

    return run_apart(ask)


def error_of(answer):
    """The error of an answer, whose form is checked."""
    error = answer.json()["error"]
    assert error.keys() == {"what", "why", "fix"}
    assert all(error.values())
    return error


def test_the_bound_on_streams_holds_when_many_begin_at_once(library, page, monkeypatch):
    """Each counts before it has read anything; those that ended, or failed, free their places."""
    monkeypatch.setattr(app, "MAX_STREAMS", 3)
    monkeypatch.setattr(app, "messages", lambda *_, **__: endless())
    application = make_app(library, assets=page)
    statuses, leave = [], anyio.Event()

    async def endless():
        yield b": here\n\n"
        await anyio.sleep_forever()

    async def stream(query=b""):
        async def receive():
            await leave.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        scope = {"type": "http", "method": "GET", "path": "/api/stream", "raw_path": b"/api/stream"}
        headers = [(b"host", b"localhost")]
        await application(scope | {"query_string": query, "headers": headers, "root_path": ""}, receive, send)

    async def burst():
        nonlocal leave
        for _ in range(2):
            leave = anyio.Event()
            async with anyio.create_task_group() as group:
                group.start_soon(stream, b"run=missing")
                for _ in range(8):
                    group.start_soon(stream)
                with anyio.fail_after(20):
                    while len(statuses) % 9 or not statuses:
                        await anyio.sleep(0.01)
                leave.set()

    run_apart(burst)
    # The one that fails holds a place until it has failed: two of the others go on, or three.
    assert statuses.count(404) == 2
    assert 4 <= statuses.count(200) <= 6
    assert statuses.count(503) == 16 - statuses.count(200)


def test_a_stream_whose_cursor_was_too_long_begins_with_the_series(get, library, monkeypatch):
    """`anew` is answered with a reset for each run, and once."""
    taken = []
    monkeypatch.setattr(app, "messages", lambda stream, *_, **__: taken.append(stream) or none())

    async def none():
        return
        yield

    assert get("/api/stream?run=first&run=group/second&cursor=anew").status_code == 200
    assert get("/api/stream?run=first", headers={"last-event-id": "anew"}).status_code == 200
    for stream, runs in zip(taken, (["first", "group/second"], ["first"]), strict=True):
        for run in runs:
            (block,) = stream.read(run)
            assert b"event: reset" in block
            assert stream.read(run) == []


def broken_for(id, view):
    """A view that fails for one run."""

    def broken(run, **options):
        if run.id == id:
            raise ZeroDivisionError("by nothing")
        return view(run, **options)

    return broken


def test_one_run_that_fails_takes_no_other_with_it(get, monkeypatch):
    """In the list, the metrics and its words; whatever is wrong with it."""
    for view in ("summary", "last_numbers"):
        monkeypatch.setattr(api, view, broken_for("first", getattr(api, view)))
    runs = {run["id"]: run for run in get("/api/runs").json()["runs"]}
    assert runs["first"]["state"] == "damaged"
    assert "ZeroDivisionError: by nothing" in runs["first"]["problems"][0]
    assert runs["first"].keys() == runs["group/second"].keys()
    assert runs["group/second"]["state"] == "finished"
    answer = get("/metrics")
    assert answer.status_code == 200
    assert 'paceline_state{run="first",state="damaged"} 1' in answer.text


def test_a_run_whose_series_fail_is_named_and_the_others_come(get, monkeypatch):
    monkeypatch.setattr(api, "series", broken_for("first", api.series))
    answer = get("/api/series?run=first&run=group/second&key=train/loss").json()
    assert (list(answer["runs"]), answer["failed"]) == (["group/second"], {"first": "ZeroDivisionError: by nothing"})


def test_a_run_that_is_removed_before_its_series_are_made_is_left_out(library):
    """Not given as a run without steps."""
    pieces = api.Api(library).series(QueryParams([("run", "first"), ("run", "group/second"), ("key", "train/loss")]))
    opening = next(pieces)
    shutil.rmtree(library.root / "first")
    library._searched_s = None
    library.poll()
    answer = json.loads(opening + b"".join(pieces))
    assert (list(answer["runs"]), answer["failed"]) == (["group/second"], {})


@pytest.mark.parametrize(
    "program",
    [{"collectives": [1]}, {"collectives": [{"times": "x"}]}, {"collectives": {"a": 1}}, {"wire_bytes": "many"},
     {"memory": 7, "communication_s": [], "error": {}}],
)  # fmt: skip
def test_a_comparison_with_a_strange_document_is_answered_in_words(tmp_path, page, program):
    """Compared without the number, or refused: never a mistake of ours."""
    make_run(tmp_path / "two" / "good", steps=3)
    write_json(make_run(tmp_path / "two" / "strange", steps=3) / "program.json", program)
    library = Library(tmp_path / "two")
    library.read_all()
    answer = answer_of(make_app(library, assets=page), "/api/compare?subject=good&subject=strange")
    assert answer.status_code in (200, 400)
    if answer.status_code == 400:
        error_of(answer)


def test_a_comparison_that_fails_is_refused_in_words(get, monkeypatch):
    """Whatever was not thought of, in a subject or between two."""
    monkeypatch.setattr(api, "compare_document", lambda *_: {}["no such key"])
    assert "cannot be compared: KeyError" in error_of(get("/api/compare?subject=first"))["what"]
    monkeypatch.setattr(results, "followed_subject", lambda *_, **__: [][1])
    answer = get("/api/compare?subject=first")
    assert answer.status_code == 400
    assert error_of(answer)["what"].startswith("'first' cannot be compared: IndexError")


def test_a_root_whose_name_is_no_text_can_be_watched(tmp_path, page):
    """A byte that is no UTF-8 is written out."""
    root = tmp_path / os.fsdecode(b"r\xff")
    make_run(root / "a", steps=3)
    library = Library(root)
    library.read_all()
    application = make_app(library, assets=page)
    assert answer_of(application, "/api/runs").json()["root"].endswith("r\\udcff")
    assert error_of(answer_of(application, "/api/run?run=b"))["what"].startswith("no run 'b'")


def test_a_thread_that_is_stuck_holds_up_no_other_request(get, monkeypatch):
    """It keeps its thread; the others go on."""
    goes_on = threading.Event()
    inner = api.detail
    monkeypatch.setattr(api, "detail", lambda run, **k: (run.id == "first" and goes_on.wait(20)) or inner(run, **k))
    stuck = threading.Thread(target=get, args=("/api/run?run=first",), daemon=True)
    stuck.start()
    assert get("/api/run?run=group/second").status_code == 200
    goes_on.set()
    stuck.join(20)


def test_a_resumed_run_without_an_evaluation_is_compared(tmp_path, page):
    """It was evaluated at step 50 and goes on from 40: there is no last evaluation."""
    root = tmp_path / "runs"
    make_run(root / "whole", steps=60)
    run = LiveRun(root / "resumed", steps=60, planned=200)
    run.append({"kind": "start", "step": 40, "time_s": time.time(), "values": {}})
    run.last = 40
    run.step()
    library = Library(root)
    library.read_all()
    application = make_app(library, assets=page)
    assert answer_of(application, "/api/compare?subject=whole&subject=resumed").status_code == 200
    metrics = answer_of(application, "/api/run?run=resumed").json()["metrics"]
    assert all(metric["count"] for metric in metrics)
    assert "evaluate/loss" not in {metric["key"] for metric in metrics}
    library.close()


def test_documents_with_impossible_numbers_take_nothing_else_with_them(tmp_path, page):
    """A divergence of a run whose run.json is torn; a number of the model that no float holds."""
    root = tmp_path / "runs"
    make_run(root / "whole", steps=60)
    torn = make_run(root / "torn", steps=60, diverges_at=50)
    (torn / "run.json").write_text('{"task": "ima')
    large = make_run(root / "large", steps=60)
    program = json.loads((large / "program.json").read_text())
    program["communication_s"] = program["step_s"] = 10**400
    (large / "program.json").write_text(json.dumps(program))
    library = Library(root)
    library.read_all()
    application = make_app(library, assets=page)
    tiles = answer_of(application, "/api/replicas?run=torn").json()["tiles"]
    assert "odd" in {tile["state"] for tile in tiles}
    assert {answer_of(application, f"/api/{name}?run=large").status_code for name in ("run", "pipeline")} == {200}
    runs = answer_of(application, "/api/series?run=large&run=whole&key=communication/share").json()["runs"]
    assert [len(run["series"]) for run in runs.values()] == [0, 1]
    library.close()


def test_a_csv_waits_until_the_run_is_read_or_is_refused(tmp_path, page, monkeypatch):
    """Never a part of the steps."""
    make_run(tmp_path / "runs" / "first", steps=300)
    library = Library(tmp_path / "runs")
    monkeypatch.setattr(library_module, "SLICE_BYTES", 512)
    library.poll(budget_s=0)
    application = make_app(library, assets=page)
    monkeypatch.setattr(app, "_READ_WITHIN_S", 0.0)
    answer = answer_of(application, "/api/csv?run=first&key=train/loss")
    assert (answer.status_code, "still being read" in error_of(answer)["what"]) == (400, True)
    monkeypatch.setattr(app, "_READ_WITHIN_S", 60.0)
    begin_s = time.monotonic()
    assert answer_of(application, "/api/csv?run=first").status_code == 400
    assert time.monotonic() - begin_s < 30  # what nobody can answer is not waited for
    inner = api.Api.csv
    monkeypatch.setattr(api.Api, "csv", lambda self, *given, **may: inner(self, *given, **may) or library.read_all())
    assert len(answer_of(application, "/api/csv?run=first&key=train/loss").text.splitlines()) == 301
    library.close()


def test_a_csv_of_a_run_that_changes_meanwhile_breaks_off(tmp_path):
    """It does not go on with steps that nobody wrote."""
    make_run(tmp_path / "runs" / "first", steps=3000)
    library = Library(tmp_path / "runs")
    library.read_all()
    found = api.Api(library).csv(QueryParams([("run", "first"), ("key", "train/loss")]))
    assert found is not None
    _, pieces = found
    next(pieces), next(pieces)
    library.run("first").release()
    with pytest.raises(RunFolderError, match="gone while its CSV was made"):
        list(pieces)
    library.close()


def test_a_csv_that_breaks_off_is_one_line_on_the_terminal(tmp_path, page, monkeypatch, capfd):
    """The run was removed meanwhile, which is no mistake of ours."""
    make_run(tmp_path / "runs" / "first", steps=3000)
    library = Library(tmp_path / "runs")
    library.read_all()
    inner = api.csv_lines

    def removed_meanwhile(run, *, keys):
        pieces = inner(run, keys=keys)
        yield next(pieces)
        yield next(pieces)
        run.release()
        yield from pieces

    monkeypatch.setattr(api, "csv_lines", removed_meanwhile)
    with pytest.raises(AssertionError):  # of httpx: the answer has no end
        answer_of(make_app(library, assets=page), "/api/csv?run=first&key=train/loss")
    told = capfd.readouterr().err
    assert told.count("\n") == 1 and "/api/csv broke off: steps of run 'first' are gone" in told
    library.close()
