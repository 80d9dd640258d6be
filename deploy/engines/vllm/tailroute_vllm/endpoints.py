"""The HTTP side: what a router asks and tells, in the API server's process.

- ``GET /v1/tailroute``: what is understood here.
- ``POST /v1/tailroute/hints`` with ``{"hints": [...]}``: how many were applied, wait, had expired, were stale, named
  nothing known, or were no hints.
- ``PUT /v1/tailroute/objective`` with ``{"xi_tokens", "next_prompt_tokens", "epoch", "ttl_ms", "t_lru", ...}``.
- ``GET /metrics``, vLLM's own, gains the counters.

All of it goes through one utility call to every engine core (one per data-parallel rank). With ``--api-key`` vLLM asks
for the key on these paths too, since they are below ``/v1``.
"""

from __future__ import annotations

import asyncio
import json
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from . import install
from .director import EVICT_FIRST, KINDS, OUTCOMES, Objective

MAX_HINTS = 4096
MAX_BODY_BYTES = 4 << 20
# A scrape or a probe does not wait longer for a busy engine; it gets what the last one got.
SHORT_TIMEOUT_S = 0.5
ANSWER_TIMEOUT_S = 10.0


class Refused(Exception):
    """What a client is told instead of an answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message

    def response(self) -> JSONResponse:
        """As OpenAI's API says it."""
        kind = "invalid_request_error" if self.status < 500 else "internal_error"
        error = {"message": self.message, "type": kind, "param": None, "code": self.status}
        return JSONResponse({"error": error}, self.status)


class Engines:
    """The engine cores behind this API server."""

    def __init__(self) -> None:
        self._core: Any = None
        self.model: str | None = None
        self.last: list[dict[str, Any]] = []

    def connect(self, client: Any, model: str | None) -> None:
        """Remembers how to reach them."""
        self._core = getattr(client, "engine_core", None)
        self.model = model

    async def ask(self, message: dict[str, Any], timeout_s: float = ANSWER_TIMEOUT_S) -> list[dict[str, Any]]:
        """One answer per engine core. Raises Refused if they cannot answer."""
        if self._core is None:
            raise Refused(503, "There is no engine behind this server.")
        call = getattr(self._core, "call_utility_all_async", None)
        text = json.dumps(message)
        try:
            if call is not None:
                answers = await asyncio.wait_for(call(install.UTILITY, text), timeout_s)
            else:
                answers = [await asyncio.wait_for(self._core.call_utility_async(install.UTILITY, text), timeout_s)]
        except asyncio.TimeoutError:
            raise Refused(503, "The engine is too busy to answer.") from None
        except Exception as error:
            install.log.warning("tailroute: the engine core did not answer: %s", error)
            self.last = []
            raise Refused(503, "The engine did not answer.") from error
        read = [json.loads(answer) for answer in answers]
        if not all(answer["available"] for answer in read):
            self.last = []
            raise Refused(503, "Hints are off in this engine: no prefix caching, or an earlier error.")
        self.last = [answer["status"] for answer in read]
        return read


class TailrouteEndpoints:
    """Entry point ``vllm.endpoint_plugins``; vLLM loads it if ``VLLM_PLUGINS`` names ``tailroute``."""

    name = "tailroute"
    required_tasks = ("generate",)

    def __init__(self) -> None:
        self._engines = Engines()

    def attach_router(self, app: FastAPI) -> None:
        """Adds the routes, unless the engine side refused this vLLM: then a router is to see a stock engine."""
        try:
            install.check() if not install.is_installed() else None
        except install.Unsupported as reason:
            install.log.error("tailroute: no routes: %s", reason)
            return
        engines = self._engines
        app.add_api_route("/v1/tailroute", _guarded(engines, capabilities), methods=["GET"])
        app.add_api_route("/v1/tailroute/hints", _guarded(engines, hints), methods=["POST"])
        app.add_api_route("/v1/tailroute/objective", _guarded(engines, objective), methods=["PUT"])
        app.add_middleware(MetricsAppended, engines=engines)

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        """Learns how the engine cores are reached."""
        names = getattr(args, "served_model_name", None) or [getattr(args, "model", None)]
        self._engines.connect(engine_client, names[0])
        try:
            # Now it is idle; later a probe may find it in the middle of a long prompt.
            await self._engines.ask({})
        except Refused as refused:
            install.log.warning("tailroute: %s", refused.message)


def _guarded(engines: Engines, handler: Any) -> Any:
    async def route(request: Request) -> JSONResponse:
        try:
            return JSONResponse(await handler(engines, request))
        except Refused as refused:
            return refused.response()

    return route


async def capabilities(engines: Engines, _request: Request) -> dict[str, Any]:
    """What this engine understands; a router probes for it."""
    try:
        await engines.ask({}, SHORT_TIMEOUT_S)
    except Refused:
        if not engines.last:
            raise
    first = engines.last[0]
    return {
        "dialect": "tailroute",
        "version": 1,
        "engine": "vllm",
        "engine_version": install.vllm_version(),
        "model": engines.model,
        "hints": list(KINDS),
        "objective": True,
        "objective_ttl": True,
        # No header reaches vLLM's engine core: a request's own hint travels in its body.
        "evict_first_header": None,
        "evict_first_xarg": EVICT_FIRST,
        "max_hints": MAX_HINTS,
        "block_size": first["block_size"],
        "capacity_tokens": first["blocks"] * (first["block_size"] or 0),
        "data_parallel_ranks": len(engines.last),
    }


async def hints(engines: Engines, request: Request) -> dict[str, int]:
    """Hands hints on and counts how they fared; of several ranks the one that knew most speaks."""
    body = await _body(request)
    given = body.get("hints") if isinstance(body, dict) else None
    if not isinstance(given, list):
        raise Refused(400, "`hints` must be a list.")
    if len(given) > MAX_HINTS:
        raise Refused(400, f"At most {MAX_HINTS} hints per request.")
    answers = await engines.ask({"hints": given})
    counts = dict.fromkeys(OUTCOMES, 0)
    order = ("applied", "pending", "stale", "expired", "unknown", "rejected")
    for outcomes in zip(*(answer["outcomes"] for answer in answers), strict=True):
        counts[min(outcomes, key=order.index)] += 1
    return counts


async def objective(engines: Engines, request: Request) -> dict[str, Any]:
    """Hands the objective on; `applied` is false where a newer one has come."""
    body = await _body(request)
    try:
        Objective.of(body)
    except ValueError as error:
        raise Refused(400, str(error)) from None
    answers = await engines.ask({"objective": body})
    return {"applied": any(answer["applied"] for answer in answers), "objective": answers[0]["status"]["objective"]}


async def _body(request: Request) -> Any:
    read = bytearray()
    async for chunk in request.stream():
        read += chunk
        if len(read) > MAX_BODY_BYTES:
            raise Refused(413, f"The body is longer than {MAX_BODY_BYTES} bytes.")
    try:
        return json.loads(bytes(read))
    except ValueError as error:
        raise Refused(400, f"Invalid JSON body: {error}") from None


class MetricsAppended:
    """ASGI middleware: what ``GET /metrics`` answers, then the counters. Anything else passes untouched."""

    def __init__(self, app: Any, engines: Engines) -> None:
        self._app = app
        self._engines = engines

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"].rstrip("/") != "/metrics" or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        try:
            await self._engines.ask({}, SHORT_TIMEOUT_S)
        except Refused:
            pass
        if not self._engines.last:
            await self._app(scope, receive, send)
            return
        await self._app(scope, receive, _Appending(send, exposition(self._engines.last).encode()))


class _Appending:
    """Sends a response on with text appended, where it is plain text as Prometheus reads it."""

    def __init__(self, send: Any, text: bytes) -> None:
        self._send = send
        self._text = text

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            headers = {name.lower(): value for name, value in message["headers"]}
            if (
                message["status"] != 200
                or b"content-encoding" in headers
                or not headers.get(b"content-type", b"").startswith(b"text/plain")
            ):
                self._text = b""
            elif b"content-length" in headers:
                length = str(int(headers[b"content-length"]) + len(self._text)).encode()
                kept = [(name, value) for name, value in message["headers"] if name.lower() != b"content-length"]
                message = {**message, "headers": [*kept, (b"content-length", length)]}
        elif message["type"] == "http.response.body" and not message.get("more_body", False):
            message = {**message, "body": message.get("body", b"") + self._text}
            self._text = b""
        await self._send(message)


NO_OBJECTIVE = {"epoch": None, "age_s": None, "expired": True, "t_lru": False}
# Each with its value for the newest objective; None: absent.
OBJECTIVE_GAUGES: list[tuple[str, str, Callable[[dict[str, Any]], Any]]] = [
    (
        "objective_xi_tokens",
        "Uncached tokens that fit in the objective; absent where none is in force.",
        lambda of: None if of["expired"] else of["xi_tokens"],
    ),
    (
        "objective_next_prompt_tokens",
        "Tokens that a next prompt is expected to add; absent where no objective is in force.",
        lambda of: None if of["expired"] else of["next_prompt_tokens"],
    ),
    ("objective_epoch", "Epoch of the newest objective, in force or not.", lambda of: of["epoch"]),
    ("objective_age_seconds", "Time since the newest objective came, in force or not.", lambda of: of["age_s"]),
    (
        "objective_t_lru",
        "1 where an objective is in force and the engine evicts by it, else 0.",
        lambda of: int(of["t_lru"] and not of["expired"]),
    ),
]


def exposition(statuses: list[dict[str, Any]]) -> str:
    """The counters in Prometheus's text format, one line per engine core."""
    lines: list[str] = []

    def metric(name: str, kind: str, help_text: str, values: list[tuple[str, Any]]) -> None:
        lines.append(f"# HELP {name} {help_text}")
        lines.append(f"# TYPE {name} {kind}")
        lines.extend(f"{name}{{{labels}}} {value}" for labels, value in values if value is not None)

    ranks = list(enumerate(statuses))
    metric(
        "tailroute:evicted_blocks_total",
        "counter",
        "Cached blocks given up, by the band that they were in.",
        [(f'engine="{at}",band="free"', status["evicted_free_blocks"]) for at, status in ranks]
        + [(f'engine="{at}",band="lru"', status["evicted_lru_blocks"]) for at, status in ranks],
    )
    metric(
        "tailroute:evict_first_blocks",
        "gauge",
        "Cached blocks that go before any other cached block.",
        [(f'engine="{at}"', status["evict_first_blocks"]) for at, status in ranks],
    )
    metric(
        "tailroute:hints_total",
        "counter",
        "Hints by what became of them. One that had to wait counts as pending, then as applied or expired.",
        [(f'engine="{at}",outcome="{name}"', status["hints"][name]) for at, status in ranks for name in OUTCOMES],
    )
    metric(
        "tailroute:requests_hinted_total",
        "counter",
        "Finished requests that carried a hint of their own.",
        [(f'engine="{at}"', status["requests_hinted"]) for at, status in ranks],
    )
    metric(
        "tailroute:evicted_first_tokens_total",
        "counter",
        "Cached tokens given up from the evict-first band, by what had put them there: a hint, or the objective alone.",
        [
            (f'engine="{at}",cause="{cause}"', status[f"evicted_by_{cause}_blocks"] * (status["block_size"] or 0))
            for at, status in ranks
            for cause in ("xi", "hint")
        ],
    )
    for name, help_text, value in OBJECTIVE_GAUGES:
        values = [(f'engine="{at}"', value(status["objective"] or NO_OBJECTIVE)) for at, status in ranks]
        metric(f"tailroute:{name}", "gauge", help_text, values)
    metric(
        "tailroute:sessions",
        "gauge",
        "Conversations known by name.",
        [(f'engine="{at}"', status["sessions"]) for at, status in ranks],
    )
    return "\n".join(lines) + "\n"
