"""Every address of the page: what it answers, what it refuses, and that no name is taken for anything but text."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import threading

import httpx
import msgspec
import pytest
from starlette.datastructures import QueryParams

from paceline.dashboard.follow.library import Library
from paceline.dashboard.serve import api, app
from paceline.dashboard.serve.app import make_app
from paceline.dashboard.serve.assets import Assets
from tests.dashboard.made_runs import make_run, run_document, write_json
from tests.dashboard.serve.apart import run_apart

HOME = "http://127.0.0.1:8070"
MARKUP = '<img src=x onerror="alert(1)">'


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Four runs, one of them with markup for a name and for a metric; a result; a secret beside them."""
    outer = tmp_path_factory.mktemp("outer")
    (outer / "secret.json").write_text('{"ok": true, "results": [], "subject": "secret"}')
    root = outer / "runs"
    make_run(root / "first", steps=120, nan_at=(7,), processes=2)
    make_run(root / "group" / "second", steps=60)
    odd = make_run(root / MARKUP, steps=1, ended=False)
    event = {"kind": "step", "step": 2, "time_s": 5.0, "values": {f"train/{MARKUP}": 1.0, "train/loss": "inf"}}
    with open(odd / "events-0.jsonl", "a") as file:
        file.write(json.dumps(event) + "\n")
    (root / "verify.json").write_text(
        '{"ok": true, "results": [], "subject": "linear", "config": {"target": "linear"}}'
    )
    (root / "other.json").write_text('{"something": "else"}')
    make_run(outer / "outside", steps=5)
    (root / "linked").symlink_to(outer / "outside")
    (root / "linked.json").symlink_to(outer / "secret.json")
    leads_out = make_run(root / "leads-out", steps=5)
    (leads_out / "run.json").unlink()
    (leads_out / "run.json").symlink_to(outer / "secret.json")
    return root


@pytest.fixture(scope="module")
def library(root):
    library = Library(root)
    library.read_all()
    yield library
    library.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page of three small files, and a stand-in for plotly."""
    folder = tmp_path_factory.mktemp("assets")
    (folder / "index.html").write_text("<!doctype html><title>page</title>")
    (folder / "shell").mkdir()
    (folder / "shell" / "app.js").write_text("export const words = 'some';\n" * 50)
    (folder / "link.js").symlink_to(__file__)
    (folder / "notes.py").write_text("secret = 1")
    (folder / ".hidden.js").write_text("hidden")
    plotly = folder.parent / "plotly.min.js"
    plotly.write_text("// plotly\n" * 1000)
    return Assets(folder, plotly)


@pytest.fixture
def get(library, page):
    """`get("/api/runs")`: the answer of the application, without a network."""
    application = make_app(library, assets=page)

    def ask(path, *, method="GET", headers=None, **options):
        async def send():
            transport = httpx.ASGITransport(application, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url=HOME) as client:
                return await client.request(method, path, headers=headers, **options)

        return run_apart(send)

    return ask


def error_of(answer):
    """The error of an answer, whose form is checked."""
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert error.keys() == {"what", "why", "fix"}
    assert all(error.values())
    return error


def test_runs_lists_runs_and_results_under_the_root(get, root):
    """Not what links lead out to, not files of other kinds."""
    document = get("/api/runs").json()
    assert document["root"] == str(root)
    assert {run["id"] for run in document["runs"]} == {"first", "group/second", MARKUP, "leads-out"}
    (result,) = document["results"]
    assert result["updated_s"] == pytest.approx(os.stat(root / "verify.json").st_mtime)
    assert (result["id"], result["kind"], result["title"]) == ("verify.json", "verify", "verify linear")


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        ("/api/run?run=first", {"summary", "run", "program", "report", "metrics", "cursor"}),
        ("/api/pipeline?run=first&step=50", {"step", "stages", "queue", "bottleneck", "shapes"}),
        ("/api/replicas?run=first", {"audit", "tiles", "processes", "counts"}),
        ("/api/events?run=first&limit=3", {"events", "unknown", "skipped"}),
        ("/api/series?run=first&key=train/loss", {"runs"}),
        ("/api/compare?subject=first&subject=group/second", {"subjects", "rows", "curves"}),
    ],
)
def test_each_document_is_json_that_is_not_kept(get, path, keys):
    """With nosniff: no browser takes a name in it for a page."""
    answer = get(path)
    assert answer.status_code == 200
    assert keys <= answer.json().keys()
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_series_of_several_runs_come_in_one_answer(get):
    """Bounded by points and steps; numbers that JSON lacks are strings."""
    answer = get("/api/series", params={"run": ["first", "group/second"], "key": ["train/loss"], "points": "10"})
    runs = answer.json()["runs"]
    assert runs.keys() == {"first", "group/second"}
    curve = runs["first"]["series"]["train/loss"]
    assert len(curve["step"]) < 40
    assert curve["value"][curve["step"].index(7)] == "nan"
    part = get("/api/series?run=first&key=train/loss&from_step=20&to_step=25").json()["runs"]["first"]
    assert part["series"]["train/loss"]["step"] == [20, 21, 22, 23, 24, 25]


def test_series_are_sent_run_by_run(library, monkeypatch):
    """The numbers of twenty long runs at once would be 100 MB: a run is encoded when the one before was sent."""
    asked = []
    series = api.series
    monkeypatch.setattr(api, "series", lambda run, **options: asked.append(run.id) or series(run, **options))
    given = QueryParams([("run", "first"), ("run", "group/second"), ("run", "first"), ("key", "train/loss")])
    pieces = api.Api(library).series(given)
    sent = [next(pieces), next(pieces)]
    assert asked == ["first"]
    document = json.loads(b"".join([*sent, *pieces]))
    assert asked == list(document["runs"]) == ["first", "group/second"]
    assert all(run["series"]["train/loss"]["step"] for run in document["runs"].values())


def test_a_series_of_a_run_that_is_gone_leaves_the_others(get):
    """As when one of twenty is deleted while it is watched; alone it is an error."""
    runs = get("/api/series?run=first&run=deleted&key=train/loss").json()["runs"]
    assert runs.keys() == {"first"}
    assert get("/api/series?run=deleted&key=train/loss").status_code == 404


def test_markup_in_names_stays_text(get):
    """In JSON as a string; in the text of /metrics inside a label; in the name of a file encoded."""
    summary = get("/api/run", params={"run": MARKUP}).json()
    assert summary["summary"]["id"] == MARKUP
    assert f"train/{MARKUP}" in {metric["key"] for metric in summary["metrics"]}
    metrics = get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    assert metrics.headers["x-content-type-options"] == "nosniff"
    table = get("/api/csv", params={"run": MARKUP, "key": "train/loss"})
    assert "<" not in table.headers["content-disposition"] and '"' not in table.headers["content-disposition"]


def test_csv_has_every_step(get):
    """As a download, in the order of steps."""
    answer = get("/api/csv?run=group/second&key=train/loss&key=speed/step_s")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''group-second.csv"
    rows = list(csv.reader(io.StringIO(answer.text)))
    assert rows[0] == ["step", "time_s", "train/loss", "speed/step_s"]
    assert [row[0] for row in rows[1:]] == [str(step) for step in range(1, 61)]


PATHS = [
    "../secret.json", "../outside", "../../etc/passwd", "/etc/passwd", "group/../first", "./first", "first/", "linked",
    "linked.json", "first/run.json", "..%2foutside", "first\x00", "", ".", "..", "\\..\\outside", "~",
]  # fmt: skip


@pytest.mark.parametrize("name", PATHS)
def test_no_name_reads_outside_of_the_runs(get, name):
    """A run and a subject are found in a list of ids; nothing is joined to a path."""
    for path in ("/api/run", "/api/pipeline", "/api/replicas", "/api/events"):
        assert get(path, params={"run": name}).status_code == 404
    assert get("/api/csv", params={"run": name, "key": "train/loss"}).status_code == 404
    assert get("/api/series", params={"run": name, "key": "train/loss"}).status_code == 404
    assert get("/api/compare", params={"subject": name}).status_code == 404
    assert get("/api/stream", params={"run": name}).status_code == 404


@pytest.mark.parametrize("path", ["/api/run?run=leads-out", "/api/compare?subject=leads-out"])
def test_a_document_that_is_a_link_out_of_the_runs_is_not_shown(get, path):
    """The run is shown without it, and says so; it cannot be compared."""
    answer = get(path)
    assert "secret" not in answer.text.replace("secret.json", "")
    if answer.status_code == 404:
        assert "leads out" in error_of(answer)["what"]
    else:
        assert answer.json()["run"] is None


@pytest.mark.parametrize(
    "name",
    ["../serve/app.py", "..%2f..%2fserve%2fapp.py", "%2e%2e/assets.py", "notes.py", ".hidden.js", "none.js", "%00",
     "app.js", "shell", "shell/", "shell/app.js/", "shell%2f..%2fshell%2fapp.js", "link.js", "/etc/passwd",
     "..%5cserve%5capp.py", "."],
)  # fmt: skip
def test_only_files_of_the_page_are_assets(get, name):
    """Of known types, by their path in the folder as it is written."""
    answer = get(f"/assets/{name}")
    assert answer.status_code == 404
    error_of(answer)


def test_the_page_and_its_files_are_sent_with_a_tag(get):
    """Asked for again with the tag, only the tag comes; compressed for those who take it."""
    assert get("/").headers["content-type"] == "text/html; charset=utf-8"
    plain = get("/assets/shell/app.js", headers={"accept-encoding": "identity"})
    packed = get("/assets/shell/app.js", headers={"accept-encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) < int(plain.headers["content-length"])
    assert packed.text == plain.text
    assert plain.headers["etag"] != packed.headers["etag"]
    again = get("/assets/shell/app.js", headers={"accept-encoding": "gzip", "if-none-match": packed.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert "content-security-policy" in again.headers


def test_plotly_comes_from_the_installed_package_without_importing_it():
    """Found by its metadata; a megabyte and a half when compressed, and the same bytes."""
    asset = Assets().get("plotly.min.js", compress=True)
    assert asset is not None and asset.encoding == "gzip"
    text = gzip.decompress(asset.content)
    assert b"plotly.js" in text[:200]
    assert len(asset.content) < len(text) / 3


def test_head_gives_headers_without_a_body(get, monkeypatch):
    """Of documents, files, curves, which are not made, and the stream, which does not begin."""
    monkeypatch.setattr(api, "series", None)
    for path in ("/", "/api/runs", "/api/series?run=first&key=train/loss", "/api/stream"):
        answer = get(path, method="HEAD")
        assert (answer.status_code, answer.content) == (200, b"")
    assert get("/api/series?run=deleted&key=train/loss", method="HEAD").status_code == 404


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("/api/runs?run=first", "unknown parameter 'run'"),
        ("/api/run", "0 values of 'run'"),
        ("/api/run?run=first&run=first", "2 values of 'run'"),
        ("/api/run?runs=first", "unknown parameter 'runs', perhaps 'run'"),
        ("/api/series?run=first", "0 values of 'key'"),
        ("/api/series?key=train/loss", "0 values of 'run'"),
        ("/api/series?run=first&key=train/loss&points=1", "points=1"),
        ("/api/series?run=first&key=train/loss&points=1e3", "points=1e3"),
        ("/api/series?run=first&key=train/loss&points=%D9%A3%D9%A3", "points=٣٣"),
        ("/api/series?run=first&key=train/loss&points=99999999999999999999999", "points=9999"),
        ("/api/series?run=first&key=train/loss&from_step=-1", "from_step=-1"),
        ("/api/pipeline?run=first&step=", "step="),
        ("/api/events?run=first&limit=0", "limit=0"),
        ("/api/events?run=first&limit=100000", "limit=100000"),
        ("/api/compare", "0 values of 'subject'"),
        ("/api/stream?run=first&cursor=nonsense", "'nonsense' is no cursor"),
        ("/api/stream?run=first&at=3", "unknown parameter 'at'"),
        ("/metrics?x=1", "unknown parameter 'x'"),
    ],
)
def test_a_wrong_parameter_is_refused_with_the_fix(get, path, what):
    """None is ignored."""
    answer = get(path)
    assert answer.status_code == 400
    assert error_of(answer)["what"].startswith(what)


@pytest.mark.parametrize(
    ("points", "near"), [("10001", 10_000), ("9" * 30, 10_000), ("1", 2), ("-5", 2), ("-" + "9" * 30, 2), ("many", 2)]
)
def test_a_number_out_of_bounds_is_refused_with_the_nearest(get, points, near):
    answer = get("/api/series", params={"run": "first", "key": "train/loss", "points": points})
    assert answer.status_code == 400
    assert error_of(answer)["fix"] == f"give points={near}"


@pytest.mark.parametrize("name", ["run", "key"])
def test_the_number_of_names_in_a_request_is_bounded(get, name):
    """At the bound and one above it."""
    both = {"run": ["first"], "key": ["train/loss"]}
    names = [f"x{number}" for number in range(api.MAX_NAMES - 1)]
    assert get("/api/series", params=both | {name: both[name] + names}).status_code == 200
    answer = get("/api/series", params=both | {name: [*both[name], *names, "one-more"]})
    assert error_of(answer)["what"] == f"{api.MAX_NAMES + 1} values of '{name}'"


def test_an_unknown_address_is_an_error_like_any_other(get):
    """Never a page of the framework's."""
    for path in ("/api/nothing", "/api", "/favicon.ico", "/%3Cscript%3E", "/api/runs/", "/index.html"):
        answer = get(path)
        assert answer.status_code == 404
        error_of(answer)


def test_a_mistake_of_ours_is_told_and_hides_nothing(get, monkeypatch, capfd):
    """Words for the page with status 500, the traceback for the terminal, and the guard's headers on it."""

    def broken(*_, **__):
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(api, "detail", broken)
    answer = get("/api/run?run=first")
    assert answer.status_code == 500
    assert error_of(answer)["what"] == "ZeroDivisionError: by nothing"
    assert "Traceback" not in answer.text
    assert "content-security-policy" in answer.headers
    assert get("/api/run?run=first").status_code == 500
    assert capfd.readouterr().err.count("Traceback") == 1


def test_more_streams_than_the_server_keeps_are_refused(get, monkeypatch):
    """Each holds a connection and a task."""
    monkeypatch.setattr(app, "MAX_STREAMS", 0)
    answer = get("/api/stream")
    assert answer.status_code == 503
    assert error_of(answer)["what"] == "0 streams are open"


def test_documents_are_made_outside_of_the_event_loop(get, monkeypatch):
    """A slow disk must not hold up the streams of others."""
    threads = []
    inner = api.detail
    monkeypatch.setattr(api, "detail", lambda *a, **k: threads.append(threading.current_thread()) or inner(*a, **k))
    assert get("/api/run?run=first").status_code == 200
    assert threads and threading.main_thread() not in threads


def test_numbers_that_json_lacks_are_strings_in_every_document(get):
    """A browser's parser takes no NaN, and null would be a missing value."""
    document = get("/api/run", params={"run": MARKUP}).json()
    assert {metric["key"]: metric["last"] for metric in document["metrics"]}["train/loss"] == "inf"
    for path in ("/api/runs", "/api/run?run=first", "/api/series?run=first&key=train/loss"):
        msgspec.json.decode(get(path).content)


def test_a_task_of_another_version_breaks_nothing(tmp_path, page):
    """run.json that is no object, events that are none: the list still comes."""
    make_run(tmp_path / "good", steps=3)
    for name, text in (("list", "[1]"), ("torn", '{"task": '), ("binary", "\x00\x01")):
        folder = make_run(tmp_path / name, steps=3)
        (folder / "run.json").write_text(text)
    strange = make_run(tmp_path / "strange", steps=3)
    write_json(
        strange / "run.json", dict.fromkeys(run_document.__annotations__ or {}, 3) | {"devices": [], "counts": 7}
    )
    library = Library(tmp_path)
    library.read_all()
    application = make_app(library, assets=page)

    async def ask():
        transport = httpx.ASGITransport(application)
        async with httpx.AsyncClient(transport=transport, base_url=HOME) as client:
            documents = [await client.get("/api/runs"), await client.get("/metrics")]
            for name in ("good", "list", "torn", "binary", "strange"):
                for kind in ("run", "pipeline", "replicas", "events"):
                    documents.append(await client.get(f"/api/{kind}", params={"run": name}))
            return documents

    assert {answer.status_code for answer in run_apart(ask)} == {200}
