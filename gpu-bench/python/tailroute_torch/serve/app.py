"""The routes, as the simulated engine has them, but for its switches."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from . import control, metrics, request
from .engine import Engine, OverloadedError, Turn
from .errors import ApiError, bad_request, overloaded, too_large
from .replies import Reply

_EVENT_STREAM = "text/event-stream; charset=utf-8"
_METRICS = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Surface:
    """What is told and taken over HTTP."""

    limits: request.Limits
    max_body_bytes: int
    cached_tokens_report: bool
    per_request_metrics: bool


class App:
    """Holds what the routes share."""

    def __init__(self, engine: Engine, surface: Surface) -> None:
        self.engine, self.surface = engine, surface

    def asgi(self) -> Starlette:
        handlers = {HTTPException: _of_starlette, ApiError: _of_api, Exception: _unexpected}

        def route(path: str, act: Callable[[Request], Awaitable[Response]], method: str) -> Route:
            return Route(path, act, methods=[method])

        routes = [
            route("/v1/chat/completions", self.chat, "POST"),
            route("/v1/completions", self.complete, "POST"),
            route("/tokenize", self.tokenize, "POST"),
            route("/v1/models", self.models, "GET"),
            route("/health", self.health, "GET"),
            route("/metrics", self.metrics, "GET"),
            route("/kv_event_sources", self.kv_event_sources, "GET"),
            route("/v1/tailroute", self.capabilities, "GET"),
            route("/v1/tailroute/hints", self.hints, "POST"),
            route("/v1/tailroute/objective", self.objective, "PUT"),
            route("/sim/stats", self.stats, "GET"),
        ]
        return Starlette(routes=routes, exception_handlers=handlers, lifespan=self._lifespan)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(self.engine.stop)

    async def chat(self, http: Request) -> Response:
        return await self._answer(http, chat=True)

    async def complete(self, http: Request) -> Response:
        return await self._answer(http, chat=False)

    async def _answer(self, http: Request, chat: bool) -> Response:
        with self.engine.lock:
            self.engine.counters.received += 1
            number = self.engine.counters.received
        body = await self._body(http)
        limits, vocabulary = self.surface.limits, self.engine.vocabulary
        # Cutting a long prompt into tokens takes a while: elsewhere, so that others are answered meanwhile.
        asked = await asyncio.to_thread(request.read, limits, vocabulary, http.headers, body)
        changed = asyncio.Event()
        loop = asyncio.get_running_loop()
        try:
            turn = self.engine.submit(asked, lambda: _tell(loop, changed))
        except OverloadedError:
            raise overloaded() from None
        reply = Reply(
            _reply_id(http, chat, number),
            chat,
            int(time.time()),
            limits.model,
            self.surface.cached_tokens_report,
            self.surface.per_request_metrics,
        )
        if asked.stream:
            return StreamingResponse(self._events(reply, turn, changed), media_type=_EVENT_STREAM)
        await self._until_done(http, turn, changed)
        return JSONResponse(reply.whole(turn))

    async def _events(self, reply: Reply, turn: Turn, changed: asyncio.Event) -> AsyncIterator[bytes]:
        """Ends, and the turn with it, when the client leaves: then the server closes this."""
        told, out = 0, reply.first_event()
        try:
            while True:
                await changed.wait()
                changed.clear()
                if turn.failed:
                    raise RuntimeError("the engine has stopped")
                done, safe = turn.done, turn.said.safe
                if safe > told:
                    out += reply.content_event(turn.said.text[told:safe])
                    told = safe
                if done:
                    yield out + reply.last_events(turn)
                    return
                if out:
                    yield out
                    out = b""
        finally:
            self.engine.abort(turn)

    async def _until_done(self, http: Request, turn: Turn, changed: asyncio.Event) -> None:
        left = asyncio.ensure_future(_left(http))
        try:
            while not turn.done:
                heard = asyncio.ensure_future(changed.wait())
                await asyncio.wait({heard, left}, return_when=asyncio.FIRST_COMPLETED)
                heard.cancel()
                changed.clear()
                if left.done() and not turn.done:
                    raise ClientDisconnect
        finally:
            left.cancel()
            self.engine.abort(turn)
        if turn.failed:
            raise ApiError(500, "The engine has stopped.")

    async def tokenize(self, http: Request) -> Response:
        values = request.parse(self.surface.limits, await self._body(http))
        tokens = request.prompt_tokens(self.engine.vocabulary, values)
        longest = self.surface.limits.max_model_len
        told = {"count": len(tokens), "max_model_len": longest, "tokens": tokens, "token_strs": None}
        return JSONResponse(told)

    async def models(self, _: Request) -> Response:
        model = self.surface.limits.model
        card = {
            "id": model,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "tailroute-torch",
            "root": model,
            "parent": None,
            "max_model_len": self.surface.limits.max_model_len,
        }
        return JSONResponse({"object": "list", "data": [card]})

    async def health(self, _: Request) -> Response:
        if not self.engine.healthy:
            raise ApiError(503, "the engine is not healthy")
        return PlainTextResponse("")

    async def metrics(self, _: Request) -> Response:
        page = metrics.render(self.engine, self.surface.limits.model)
        return Response(page, media_type=_METRICS)

    async def kv_event_sources(self, _: Request) -> Response:
        """No cache events are published."""
        return JSONResponse({})

    async def capabilities(self, _: Request) -> Response:
        return JSONResponse(control.capabilities(self.engine, self.surface.limits.model))

    async def hints(self, http: Request) -> Response:
        return JSONResponse(control.take_hints(self.engine, await self._body(http)))

    async def objective(self, http: Request) -> Response:
        return JSONResponse(control.set_objective(self.engine, await self._body(http)))

    async def stats(self, _: Request) -> Response:
        return JSONResponse(metrics.stats(self.engine))

    async def _body(self, http: Request) -> bytes:
        limit = self.surface.max_body_bytes
        said = http.headers.get("content-length", "0")
        if said.isdigit() and int(said) > limit:
            raise too_large(limit)
        parts, size = [], 0
        try:
            async for part in http.stream():
                size += len(part)
                if size > limit:
                    raise too_large(limit)
                parts.append(part)
        except ClientDisconnect:
            raise bad_request("The body could not be read: the client left.") from None
        return b"".join(parts)


def _tell(loop: asyncio.AbstractEventLoop, changed: asyncio.Event) -> None:
    # At the server's end nobody listens any more.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(changed.set)


async def _left(http: Request) -> None:
    """Until the client leaves. Its body has been read."""
    while (await http.receive())["type"] != "http.disconnect":
        pass


def _reply_id(http: Request, chat: bool, number: int) -> str:
    """The client's ``X-Request-Id`` becomes the reply's id."""
    kind = "chatcmpl" if chat else "cmpl"
    named = http.headers.get("x-request-id")
    return f"{kind}-{named}" if named is not None else f"{kind}-torch{number:016x}"


async def _of_api(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body(), error.status)


async def _of_starlette(http: Request, error: Exception) -> Response:
    """Of the router: what is not there."""
    assert isinstance(error, HTTPException)
    path = http.url.path
    if error.status_code == 405:
        told = ApiError(405, f"{path} does not take {http.method}.")
    elif error.status_code == 404:
        told = ApiError(404, f"There is nothing at {path}.")
    else:
        told = ApiError(error.status_code, error.detail)
    return JSONResponse(told.body(), told.status)


async def _unexpected(_: Request, __: Exception) -> Response:
    return JSONResponse(ApiError(500, "Something went wrong; the worker's log says what.").body(), 500)
