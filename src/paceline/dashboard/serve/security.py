"""Who may ask, how much, and what a browser may do with the answer.

Owns: every check on a request before a route sees it, the headers on every response, the token.
Not here: which folders can be read (`dashboard.follow`), what an answer holds (`serve.api`).
Invariant: a request that fails a check reaches no route; every response, refusals included, carries `HEADERS`.

The dangers of a page on one's own machine are the other pages in the same browser. They can send requests here, and by
rebinding a name of theirs to 127.0.0.1 could read the answers: so the ``Host`` header must be a name of this server.
Any port is taken, for ``ssh -L 9000:localhost:8080`` changes it, and rebinding cannot.
"""

from __future__ import annotations

import hashlib
import html
import ipaddress
import re
import secrets
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec
from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.dashboard.follow.cursor import LONGEST_CURSOR
from paceline.dashboard.follow.words import presentable

MAX_TARGET_BYTES = LONGEST_CURSOR + 24 * 1024
"""Of path and query: 200 runs, 40 keys and a cursor fit."""
MAX_HEADER_BYTES = LONGEST_CURSOR + 16 * 1024
"""Names and values; the cursor may stand in ``Last-Event-ID``."""
MAX_HEADERS = 100

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
ANY_ADDRESS = "*"
"""In place of a name: every IP address. A page cannot be rebound to one, since an address is no name."""

# plotly adds one empty <style> and fills it through the CSSOM: its hash is that of the empty text.
_EMPTY_STYLE = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        f"style-src 'self' {_EMPTY_STYLE}",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "font-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)

HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}

_OF_THE_SITE = ("origin", "sec-fetch-site", "sec-fetch-mode", "sec-fetch-dest")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_HOST = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[^:\[\]]+))(?::(?P<port>\d{1,5}))?")


AnswerBug = Callable[[Scope, Exception], ASGIApp]


@dataclass(frozen=True)
class Refusal:
    """Why a request goes no further: an HTTP status, and the words."""

    status: int
    what: str
    why: str
    fix: str

    def response(self) -> Response:
        """The refusal as the API tells all errors."""
        return error_response(self.status, what=self.what, why=self.why, fix=self.fix)


def error_response(status: int, *, what: str, why: str, fix: str) -> Response:
    """``{"error": {"what", "why", "fix"}}`` with a status."""
    words = {"what": what, "why": why, "fix": fix}
    body = msgspec.json.encode({"error": {name: presentable(text) for name, text in words.items()}})
    return Response(body, status, media_type="application/json", headers={"cache-control": "no-store"})


class Guard:
    """ASGI middleware around the whole application.

    Args:
      app: what answers a request that passes.
      hosts: names and addresses that the ``Host`` header may hold; `ANY_ADDRESS` stands for every address.
      token: demanded of every request; None: nobody is asked.
      answer_bug: what is answered to a request that ended in a mistake of ours. It is answered here, where the headers
        are, and not by what is around all middleware.
    """

    def __init__(
        self, app: ASGIApp, *, hosts: Collection[str], token: str | None, answer_bug: AnswerBug | None = None
    ) -> None:
        self._app = app
        self._answer_bug = answer_bug
        self._hosts = frozenset(host.lower().rstrip(".") for host in hosts)
        self._token = None if token is None else Token(token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a refusal here, pass the rest on; websockets are no part of the page and are not answered."""
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":
            return None
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = with_headers(message.get("headers", ()))
            await send(message)

        try:
            await (self._refuse(scope) or self._app)(scope, receive, send_with_headers)
        except Exception as error:
            if self._answer_bug is None:
                raise
            answer = self._answer_bug(scope, error)
            if not started:  # else the connection ends here, which tells the reader that something is missing
                await answer(scope, receive, send_with_headers)

    def _refuse(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        refusal = (
            _size_refusal(scope, headers)
            or _method_refusal(scope, headers)
            or _host_refusal(headers, self._hosts)
            or _site_refusal(scope, headers)
        )
        if refusal is not None:
            return refusal.response()
        return None if self._token is None else self._token.refuse(scope, headers)


class Token:
    """The secret of one server, and the ways to show it: once in the address, then a cookie; or a bearer header.

    Args:
      secret: as printed when the server started.
    """

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()
        # Cookies are shared by all ports of a name: two servers there must not overwrite each other's.
        self._cookie = "paceline_" + hashlib.sha256(self._secret).hexdigest()[:8]

    def refuse(self, scope: Scope, headers: Headers) -> Response | None:
        """None for who has it; else the page that keeps it, or a refusal."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._is(given.strip()):
            return None
        if self._is(_cookie(headers.getlist("cookie"), self._cookie)):
            return None
        asked = parse_qsl(scope["query_string"].decode("latin-1")) if scope["path"] == "/" else []
        shown = [value for name, value in asked if name == "token"]
        if not shown or not self._is(shown[-1]):
            return _NO_TOKEN.response()
        return self._keep(scope, [(name, value) for name, value in asked if name != "token"])

    def _is(self, given: str) -> bool:
        return secrets.compare_digest(given.encode("utf-8", "replace"), self._secret)

    def _keep(self, scope: Scope, rest: list[tuple[str, str]]) -> Response:
        """Sets the cookie and leads on to the address without the token, so that no screen or copied address has it.

        The browser's history keeps the first address, as it keeps every one that was opened: the token is worth nothing
        after the server's end, and who can read that history can read the runs.

        A redirect would not do: after a link from elsewhere, browsers withhold a strict cookie from it.

        Args:
          rest: what else the address held, for the page's fragment.
        """
        target = html.escape("/" + (f"#{urlencode(rest)}" if rest else ""), quote=True)
        response = HTMLResponse(_LEAD_ON.replace("TARGET", target), headers={"cache-control": "no-store"})
        response.set_cookie(
            self._cookie,
            self._secret.decode(),
            path="/",
            httponly=True,
            samesite="strict",
            secure=scope.get("scheme") == "https",
        )
        return response


def new_token() -> str:
    """256 random bits, as text that fits in an address."""
    return secrets.token_urlsafe(32)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


_LEAD_ON = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="0;url=TARGET">'
    '<title>Paceline</title><p><a href="TARGET">Paceline</a></p></html>'
)

_NO_TOKEN = Refusal(
    status=401,
    what="this page asks for its token",
    why="it can be reached from other machines, and runs are not for everybody",
    fix="open the address that paceline watch printed, with ?token=, or send Authorization: Bearer TOKEN",
)


def with_headers(given: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers of a response, and `HEADERS`, which replace those of the same name."""
    own = {name.encode(): value.encode() for name, value in HEADERS.items()}
    return [*((name, value) for name, value in given if name.lower() not in own), *own.items()]


def _size_refusal(scope: Scope, headers: Headers) -> Refusal | None:
    target_bytes = len(scope.get("raw_path") or scope["path"].encode()) + len(scope["query_string"])
    if target_bytes > MAX_TARGET_BYTES:
        return Refusal(
            status=414,
            what=f"the address has {target_bytes} bytes",
            why=f"more than {MAX_TARGET_BYTES} are not read",
            fix="ask for fewer runs or keys at once",
        )
    if len(headers.raw) > MAX_HEADERS or sum(len(name) + len(value) for name, value in headers.raw) > MAX_HEADER_BYTES:
        return Refusal(
            status=431,
            what="the headers of the request are too large",
            why=f"more than {MAX_HEADERS} of them, or {MAX_HEADER_BYTES} bytes, are not read",
            fix="delete the cookies of this name in the browser",
        )
    return None


def _method_refusal(scope: Scope, headers: Headers) -> Refusal | None:
    if scope["method"] not in ("GET", "HEAD"):
        return Refusal(
            status=405,
            what=f"the method {scope['method'][:20]} is not answered",
            why="the page only reads",
            fix="use GET",
        )
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        return Refusal(
            status=413,
            what="the request has a body",
            why="GET and HEAD take none, and no body is read here",
            fix="send the request without one",
        )
    return None


def _host_refusal(headers: Headers, hosts: frozenset[str]) -> Refusal | None:
    given = headers.getlist("host")
    name = _host_name(given[0]) if len(given) == 1 else None
    if name is not None and (name in hosts or (ANY_ADDRESS in hosts and _is_address(name))):
        return None
    names = ", ".join(sorted(hosts - {ANY_ADDRESS}))
    return Refusal(
        status=421,
        what=f"the request is for {', '.join(given)[:100]!r}, which is no name of this server",
        why="a page elsewhere could give its own name this address and read your runs",
        fix=f"use one of {names}" + (", or an IP address" if ANY_ADDRESS in hosts else ""),
    )


def _host_name(host: str) -> str | None:
    """The name or address in a ``Host`` header, without its port; None if it is malformed."""
    parts = _HOST.fullmatch(host)
    if parts is None or int(parts["port"] or 0) > 65535:
        return None
    if parts["six"] is not None:
        try:
            return str(ipaddress.IPv6Address(parts["six"]))
        except ValueError:
            return None
    name = parts["name"].lower().removesuffix(".")
    return name if _NAME.fullmatch(name) else None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _site_refusal(scope: Scope, headers: Headers) -> Refusal | None:
    """Only the page itself asks, or a person who opens the page: by hand, or by a link from elsewhere."""
    refusal = Refusal(
        status=403,
        what="another page asks for this one's data",
        why="runs are shown to people, not to other pages in their browser",
        fix="open the page by its own address; programs send no Sec-Fetch-Site and no Origin",
    )
    if any(len(headers.getlist(name)) > 1 for name in _OF_THE_SITE):
        return refusal  # no browser sends one twice, and which of them counts is anyone's guess
    origin = headers.get("origin")
    if origin is not None and _place_of(origin) != headers["host"].lower():
        return refusal
    site = headers.get("sec-fetch-site", "none")
    if site in ("same-origin", "none"):
        return None
    opens = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == ("navigate", "document")
    return None if opens and scope["path"] == "/" else refusal


def _place_of(origin: str) -> str | None:
    """Host and port of an origin; None if it is malformed."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _cookie(lines: list[str], name: str) -> str:
    """The value of a cookie, or an empty text. Cookies that others set for this name are no reason to fail."""
    for part in ";".join(lines).split(";"):
        key, _, value = part.strip().partition("=")
        if key == name:
            return value
    return ""
