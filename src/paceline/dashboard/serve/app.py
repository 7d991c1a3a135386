"""The page as an ASGI application: routes, and errors as JSON.

Owns: which address leads where, statuses, caching headers, where functions that may block run.
Not here: what is in an answer (`serve.api`), who may ask (`serve.security`), listening (`serve.server`).
Invariant: the event loop never reads a file: whatever may, runs in one of `_THREADS` threads.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import quote

from sse_starlette.sse import EventSourceResponse
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from paceline.base.errors import OptionError, PacelineError, RunFolderError
from paceline.dashboard.follow.cursor import ANEW, Positions, decode_cursor
from paceline.dashboard.follow.library import Library
from paceline.dashboard.serve import prometheus
from paceline.dashboard.serve.api import Api, Query
from paceline.dashboard.serve.assets import Assets
from paceline.dashboard.serve.pulse import POLL_S, Pulse
from paceline.dashboard.serve.security import LOOPBACK_NAMES, Guard, error_response
from paceline.dashboard.serve.stream import Stream, anew, messages
from paceline.dashboard.serve.threads import Threads
from paceline.dashboard.serve.trouble import Troubles, tell_break

MAX_STREAMS = 64
PING_S = 15

_THREADS = 4
_SENT_BYTES = 256 * 1024  # at once: what is being sent is in memory three times
_READ_WITHIN_S, _ASKED_EVERY_S = 60.0, 0.1  # for a file of every step a run is read first
_NOT_KEPT = {"cache-control": "no-store"}


def make_app(
    library: Library,
    *,
    token: str | None = None,
    hosts: Collection[str] = LOOPBACK_NAMES,
    assets: Assets | None = None,
    poll_s: float = POLL_S,
) -> Starlette:
    """The application. It polls the library from its start to its end, in a thread of its own.

    Args:
      library: of the runs.
      token: demanded of every request; None: nobody is asked.
      hosts: names that the ``Host`` header may hold; see `security.Guard`.
      assets: files of the page; default: those of the package.
      poll_s: between two looks at the folders [s].
    """
    routes = _Routes(library, assets=assets or Assets(), poll_s=poll_s)
    app = Starlette(
        routes=routes.table(),
        middleware=[Middleware(Guard, hosts=hosts, token=token, answer_bug=_Bugs(Troubles()))],
        exception_handlers={PacelineError: _on_mistake, HTTPException: _on_http_error},
        lifespan=routes.lifespan,
    )
    app.router.redirect_slashes = False  # an address is right or unknown
    app.state.pulse = routes.pulse
    return app


class _Routes:
    """What answers each address."""

    def __init__(self, library: Library, *, assets: Assets, poll_s: float) -> None:
        self._api = Api(library)
        self._assets = assets
        self._threads = Threads(_THREADS)
        self._in_thread = self._threads.run
        self._streams = 0
        self.pulse = Pulse(library, summarise=self._api.summary, poll_s=poll_s)

    def table(self) -> list[Route]:
        """All routes; Starlette answers HEAD where it answers GET."""
        documents: dict[str, Callable[..., bytes]] = {
            "runs": self._api.runs,
            "run": self._api.detail,
            "pipeline": self._api.pipeline,
            "replicas": self._api.replicas,
            "events": self._api.events,
            "compare": self._api.compare,
        }
        return [
            Route("/", partial(self._asset, name="index.html")),
            Route("/assets/{name:path}", self._asset),
            *(Route(f"/api/{name}", partial(self._document, answer)) for name, answer in documents.items()),
            Route("/api/series", self._series),
            Route("/api/csv", self._csv),
            Route("/api/stream", self._stream),
            Route("/metrics", self._metrics),
        ]

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Poll while the application runs."""
        self.pulse.start()
        try:
            yield
        finally:
            self.pulse.stop()  # takes a moment, while nothing else is left to do

    async def _document(self, answer: Callable[..., bytes], request: Request) -> Response:
        body = await self._in_thread(lambda: answer(request.query_params))
        return Response(body, media_type="application/json", headers=_NOT_KEPT)

    async def _series(self, request: Request) -> Response:
        pieces = await self._in_thread(lambda: self._api.series(request.query_params))
        if request.method == "HEAD":  # the answer without its content, which need not be made
            return Response(media_type="application/json", headers=_NOT_KEPT)
        begun = await self._in_thread(lambda: _begun(pieces))
        return StreamingResponse(self._pieces(begun), media_type="application/json", headers=_NOT_KEPT)

    async def _csv(self, request: Request) -> Response:
        until_s = time.monotonic() + _READ_WITHIN_S

        def asked() -> tuple[str, Iterator[bytes]] | None:
            return self._api.csv(request.query_params, may_wait=time.monotonic() < until_s)

        while (found := await self._in_thread(asked)) is None:
            await asyncio.sleep(_ASKED_EVERY_S)
        name, pieces = found
        disposition = f"attachment; filename*=UTF-8''{quote(name, safe='', errors='replace')}"
        headers = {**_NOT_KEPT, "content-disposition": disposition}
        return StreamingResponse(self._pieces(pieces), media_type="text/csv; charset=utf-8", headers=headers)

    async def _pieces(self, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
        while (piece := await self._in_thread(lambda: next(pieces, None))) is not None:
            for begin in range(0, len(piece), _SENT_BYTES):
                yield piece[begin : begin + _SENT_BYTES]

    async def _metrics(self, request: Request) -> Response:
        text = await self._in_thread(lambda: self._api.metrics(request.query_params))
        return Response(text.encode("utf-8", "backslashreplace"), headers={"content-type": prometheus.CONTENT_TYPE})

    async def _asset(self, request: Request, name: str | None = None) -> Response:
        wanted = name or request.path_params["name"]
        compress = "gzip" in request.headers.get("accept-encoding", "")
        asset = await self._in_thread(lambda: self._assets.get(wanted, compress=compress))
        if asset is None:
            raise HTTPException(404)
        # no-cache: kept, but asked for each time, so that an upgrade shows at once.
        headers = {"etag": asset.tag, "cache-control": "no-cache", "vary": "accept-encoding"}
        if asset.encoding is not None:
            headers["content-encoding"] = asset.encoding
        if asset.tag in request.headers.get("if-none-match", "").replace(" ", "").split(","):
            return Response(status_code=304, headers=headers)
        return Response(asset.content, headers={**headers, "content-type": asset.media_type})

    async def _stream(self, request: Request) -> Response:
        query = Query(request.query_params, known=("run", "cursor"))
        runs = query.many("run", least=0)
        positions = _positions(request, runs=runs)
        if self._streams >= MAX_STREAMS:
            return error_response(
                503,
                what=f"{MAX_STREAMS} streams are open",
                why="each costs memory",
                fix="close a page, or end programs that read /api/stream",
            )
        self._streams += 1  # before anything is waited for: of many that ask at once, each counts
        try:
            stream = await self._in_thread(lambda: Stream(self._api.run, runs=runs, positions=positions))
        except BaseException:
            self._end_stream()
            raise
        content = messages(stream, self.pulse, runs=runs, summaries=self._api.summaries, in_thread=self._in_thread)
        return _StreamResponse(content, ended=self._end_stream)

    def _end_stream(self) -> None:
        self._streams -= 1


class _StreamResponse(EventSourceResponse):
    """Tells when it has ended, however it does. That its reader takes it is `serve.slow`'s to see."""

    def __init__(self, content: AsyncIterator[bytes], *, ended: Callable[[], None]) -> None:
        super().__init__(content, ping=PING_S, sep="\n")
        self._on_end = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


def _begun(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same, with the first two made already (the opening, a run): what fails there is answered as an error."""
    return itertools.chain(list(itertools.islice(pieces, 2)), pieces)


def _positions(request: Request, *, runs: Sequence[str]) -> Positions:
    """Where a stream goes on: what the browser saw last, else the cursors in the address, one or several."""
    last_seen = request.headers.get("last-event-id")
    positions: Positions = {}
    for cursor in [last_seen] if last_seen else request.query_params.getlist("cursor"):
        if cursor == ANEW:
            positions |= anew(runs)
            continue
        try:
            positions |= decode_cursor(cursor)
        except ValueError as error:
            raise OptionError(
                what=f"{cursor[:80]!r} is no cursor",
                why="it says from where on the events of a run are sent",
                fix="send back the id of a message or the cursor of a series as it was given, or leave it out",
            ) from error
    return positions


def _on_mistake(request: Request, error: Exception) -> Response:
    assert isinstance(error, PacelineError)
    status = 404 if isinstance(error, RunFolderError) else 400
    return error_response(status, what=error.what, why=error.why, fix=error.fix)


def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"nothing at {request.url.path[:200]!r}" if error.status_code == 404 else str(error.detail)
    return error_response(
        error.status_code, what=what, why="it is no address of this server", fix="see docs/watch-api.md"
    )


class _Bugs:
    """A mistake of ours: the words go to the page, the traceback to the terminal.

    A run that was removed while its answer was being sent is none: Starlette, which can no longer answer with the
    error, raises another one from it.
    """

    def __init__(self, troubles: Troubles) -> None:
        self._troubles = troubles

    def __call__(self, scope: Scope, error: Exception) -> ASGIApp:
        if isinstance(error.__cause__, RunFolderError):
            tell_break(error.__cause__, at=scope["path"])
            return _on_mistake(Request(scope), error.__cause__)
        told = self._troubles.tell(error, at=scope["path"])
        return error_response(
            500,
            what=told.what,
            why="this is a mistake in Paceline, not in your run",
            fix=f"report it with what the terminal of paceline watch says of error {told.number}",
        )
