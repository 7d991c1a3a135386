"""The guard in front of the page: each way in that is not the page itself is tried."""

from __future__ import annotations

import json

import httpx
import pytest

from paceline.dashboard.serve.security import (
    ANY_ADDRESS,
    CONTENT_SECURITY_POLICY,
    HEADERS,
    LOOPBACK_NAMES,
    MAX_HEADER_BYTES,
    MAX_TARGET_BYTES,
    Guard,
    error_response,
    is_loopback,
    new_token,
)
from paceline.dashboard.serve.trouble import Troubles
from tests.dashboard.serve.apart import run_apart

HOME = "http://127.0.0.1:8070"
SECRET = "what the runs hold"


async def shows_anything(scope, receive, send):
    """An application that answers every request, so that each refusal is the guard's."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": SECRET.encode()})


def asked(path="/api/runs", *, method="GET", headers=None, token=None, hosts=LOOPBACK_NAMES, **options):
    """The answer to one request to a guarded server."""
    guard = Guard(shows_anything, hosts=hosts, token=token)

    async def ask():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url=HOME) as client:
            return await client.request(method, path, headers=headers, **options)

    return run_apart(ask)


def test_the_page_itself_may_ask():
    """What a browser sends for the page's own requests."""
    answer = asked(headers={"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"})
    assert (answer.status_code, answer.text) == (200, SECRET)


@pytest.mark.parametrize("host", ["127.0.0.1:8070", "localhost:8070", "[::1]:8070", "LOCALHOST", "localhost.:9000"])
def test_every_name_of_this_machine_is_taken_with_any_port(host):
    """A port forwarded by ssh is another one; addresses may be written in several ways."""
    assert asked(headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8070",
        "127.0.0.1.evil.example:8070",
        "localhost.evil.example",
        "evil.example@localhost",
        "localhost:8070@evil.example",
        "localhost:80700",
        "localhost:-1",
        "localhost:80a",
        "[::2]:8070",
        "[::1",
        "[fe80::1%25lo]:8070",
        "127.0.0.2",
        "0.0.0.0",
        "192.168.1.7:8070",
        "local host",
        "",
    ],
)
def test_a_name_that_was_bound_to_this_address_is_refused(host):
    """DNS rebinding: the browser believes that this server is its own page's, and would let it read the answer."""
    answer = asked(headers={"host": host})
    assert answer.status_code == 421
    assert SECRET not in answer.text
    assert answer.json()["error"]["fix"].startswith("use one of")


def test_two_host_headers_are_refused():
    """A proxy before us may have believed the other one."""
    answer = asked(headers=[("host", "localhost"), ("host", "evil.example")])
    assert answer.status_code == 421


def test_a_server_for_other_machines_takes_their_names_for_it():
    """Its own name and any address, which cannot be rebound; not any name."""
    hosts = LOOPBACK_NAMES | {"Trainer.Lan", ANY_ADDRESS}
    for host in ("trainer.lan:8070", "10.0.0.7:8070", "[fe80::1]:8070", "localhost"):
        assert asked(headers={"host": host}, hosts=hosts).status_code == 200
    assert asked(headers={"host": "evil.example"}, hosts=hosts).status_code == 421


@pytest.mark.parametrize("site", ["cross-site", "same-site", "anything"])
@pytest.mark.parametrize("path", ["/api/runs", "/assets/shell/app.js", "/metrics"])
def test_another_page_gets_nothing(site, path):
    """Whatever it uses: fetch, a script, an image; also one on another port of this machine (same-site)."""
    answer = asked(path, headers={"sec-fetch-site": site, "sec-fetch-mode": "no-cors"})
    assert answer.status_code == 403
    assert SECRET not in answer.text


def test_a_link_from_elsewhere_opens_the_page_but_no_frame_and_no_data():
    """A person who follows a link navigates a window; everything else with such headers is another page's doing."""
    window = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert asked("/", headers=window).status_code == 200
    assert asked("/", headers=window | {"sec-fetch-dest": "iframe"}).status_code == 403
    assert asked("/api/runs", headers=window).status_code == 403


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:9999", "http://localhost:8070"])
def test_an_origin_other_than_the_page_is_refused(origin):
    """For browsers that send no Sec-Fetch-Site."""
    assert asked(headers={"origin": origin}).status_code == 403
    assert asked(headers={"origin": HOME}).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "X" * 1000])
def test_only_reading_is_answered(method):
    """OPTIONS too: a preflight gets no leave."""
    answer = asked(method=method)
    assert answer.status_code == 405
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert len(answer.text) < 300


def test_a_request_with_a_body_is_refused():
    """No body is read, whatever it says of its length."""
    assert asked(method="GET", content=b"x").status_code == 413
    assert asked(method="GET", headers={"transfer-encoding": "chunked"}).status_code == 413


def test_sizes_are_bounded():
    """Of the address and of headers, at the bound and one above it."""
    room = MAX_TARGET_BYTES - len("/api/runs") - len("q=")
    assert asked("/api/runs", params={"q": "x" * room}).status_code == 200
    assert asked("/api/runs", params={"q": "x" * (room + 1)}).status_code == 414
    assert asked("/" + "x" * MAX_TARGET_BYTES).status_code == 414
    assert asked(headers={"cookie": "x" * MAX_HEADER_BYTES}).status_code == 431
    assert asked(headers={f"x-{number}": "" for number in range(101)}).status_code == 431


@pytest.mark.parametrize("path", ["/", "/api/runs"])
def test_every_answer_carries_the_headers_refusals_too(path):
    """No answer says who may read it from elsewhere."""
    for answer in (asked(path), asked(path, headers={"host": "evil.example"}), asked(path, token=new_token())):
        assert HEADERS.items() <= dict(answer.headers).items()
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_the_policy_of_content_is_exactly_this():
    """Scripts and connections of this server alone, no frames, no forms, no markup that a name could bring in."""
    assert CONTENT_SECURITY_POLICY == (
        "default-src 'none'; script-src 'self'; "
        "style-src 'self' 'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='; "
        "img-src 'self' data: blob:; connect-src 'self'; font-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    assert HEADERS["x-content-type-options"] == "nosniff"
    assert HEADERS["referrer-policy"] == "no-referrer"
    assert HEADERS["cross-origin-opener-policy"] == HEADERS["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "Bearer "},
        {"authorization": "Basic dDp0"},
        {"authorization": "Bearer é"},
        {"cookie": "paceline=x; ="},
    ],
)
def test_without_the_token_nothing_is_shown(headers):
    """Absent, wrong, of another kind, not ASCII: the same refusal, which does not tell the token."""
    token = new_token()
    for path in ("/", "/?token=wrong", "/?token=", "/?token", "/assets/shell/app.js", "/api/runs", "/metrics"):
        answer = asked(path, token=token, headers=[(name, value.encode()) for name, value in headers.items()])
        assert answer.status_code == 401
        assert token not in answer.text
        assert "set-cookie" not in answer.headers
        assert answer.json()["error"]["fix"].startswith("open the address that paceline watch printed")


def test_the_token_in_the_address_becomes_a_cookie():
    """Once, for the page alone; the browser goes on to the address without it, and the cookie opens everything."""
    token = new_token()
    first = asked("/", params={"token": token}, token=token)
    assert first.status_code == 200
    assert 'content="0;url=/"' in first.text
    assert token not in first.text
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "Path=/" in cookie
    kept = cookie.partition(";")[0]
    assert asked("/api/runs", token=token, headers={"cookie": f"other=1; {kept}; third=2"}).text == SECRET
    assert asked("/api/runs", params={"token": token}, token=token).status_code == 401
    assert asked("/api/runs", token=new_token(), headers={"cookie": kept}).status_code == 401


def test_the_way_on_from_the_token_keeps_what_else_was_asked_for():
    """In the fragment, which the page reads; nothing in it becomes markup or another address."""
    token = new_token()
    query = {"token": token, "run": 'a/b"><script>alert(1)</script>', "next": "//evil.example"}
    text = asked("/", params=query, token=token).text
    assert 'url=/#run=a%2Fb%22%3E%3Cscript%3Ealert%281%29%3C%2Fscript%3E&amp;next=%2F%2Fevil.example"' in text
    assert "<script" not in text and token not in text


def test_programs_send_the_token_as_a_bearer():
    """A scraper of /metrics has no cookies."""
    token = new_token()
    assert asked("/metrics", token=token, headers={"authorization": f"Bearer {token}"}).status_code == 200
    assert asked("/metrics", token=token, headers={"authorization": f"bearer  {token}"}).status_code == 200
    assert asked("/metrics", token=token, headers={"authorization": f"Bearer {token}x"}).status_code == 401


def test_tokens_are_compared_in_constant_time(monkeypatch):
    """By `secrets.compare_digest`, over all bytes of both."""
    seen = []
    monkeypatch.setattr("secrets.compare_digest", lambda one, other: seen.append((one, other)) or False)
    asked(token="secret", headers={"authorization": "Bearer guess"})
    assert (b"guess", b"secret") in seen


def test_tokens_are_long_and_never_the_same():
    """256 random bits."""
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100 and all(len(token) == 43 for token in tokens)


@pytest.mark.parametrize(
    ("host", "alone"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True)]
    + [(host, False) for host in ("0.0.0.0", "::", "10.0.0.1", "trainer.lan", "", "localhost.evil.example")],
)
def test_only_loopback_goes_without_a_token(host, alone):
    """A name may be anything's, so it is not trusted."""
    assert is_loopback(host) == alone


def test_a_websocket_is_not_answered():
    """The page has none, and it would pass by the checks of origins."""
    sent = []

    async def connect():
        guard = Guard(shows_anything, hosts=LOOPBACK_NAMES, token=None)
        await guard({"type": "websocket", "path": "/", "headers": []}, None, sent.append)

    run_apart(connect)
    assert sent == []


def test_a_refusal_is_json_that_no_browser_takes_for_a_page():
    """The name that was asked for comes back inside a JSON string, with a type that is not sniffed."""
    answer = asked(headers={"host": "<script>alert(1)</script>"})
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "<script>" in json.loads(answer.content)["error"]["what"]


@pytest.mark.parametrize(
    "origin", ["http://[", "http://[::1", "null", "", "http://127.0.0.1:8070@evil.example", "\xff"]
)
def test_an_origin_that_is_none_is_refused(origin):
    """Also one that cannot be taken apart; before anything else is looked at."""
    answer = asked(headers={"origin": origin.encode("latin-1")})
    assert answer.status_code == 403
    assert SECRET not in answer.text


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("origin", [HOME, "http://evil.example"]),
        ("origin", [HOME, HOME]),
        ("sec-fetch-site", ["same-origin", "cross-site"]),
        ("sec-fetch-dest", ["document", "script"]),
    ],
)
def test_two_headers_of_which_one_would_be_looked_at_are_refused(name, values):
    """Browsers send each once; in any order."""
    for order in (values, values[::-1]):
        answer = asked("/", headers=[(name, value) for value in order])
        assert (answer.status_code, SECRET in answer.text) == (403, False)


def test_a_mistake_of_ours_has_the_headers_and_one_line_each_time(capfd):
    """The traceback comes once; names in the address cannot make lines of their own."""

    async def broken(scope, receive, send):
        raise ZeroDivisionError("by\nnothing")

    troubles = Troubles()

    def answer_bug(scope, error):
        return error_response(500, what=troubles.tell(error, at=scope["path"]).what, why="-", fix="-")

    guard = Guard(broken, hosts=LOOPBACK_NAMES, token=None, answer_bug=answer_bug)

    async def ask():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url=HOME) as client:
            return [await client.get("/a%0Ab%1B[31m") for _ in range(3)]

    for answer in run_apart(ask):
        assert answer.status_code == 500
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    err = capfd.readouterr().err
    assert err.count("Traceback") == 1
    assert err.count("paceline watch: no answer to /a\\nb\\x1b[31m: ZeroDivisionError: by\\nnothing (error ") == 3
