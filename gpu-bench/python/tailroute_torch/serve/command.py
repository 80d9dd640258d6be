"""``serve``: the model as an engine on a port, until interrupted."""

from __future__ import annotations

import argparse
import json
import socket

import uvicorn

from .. import devices
from ..model import random_decoder
from ..options import Ready, SetupError, prepare
from ..paged import KvPool
from .app import App, Surface
from .engine import Engine, EngineLimits
from .request import Limits
from .tokens import Vocabulary

# Connections beyond which the server refuses; the queue's own limit is far below.
_MOST_CONNECTIONS = 4096
# Routers keep connections; a server that closes them first makes their next request fail.
_KEEP_ALIVE_S = 300
_BYTES_OF_BLOCKS = 4 << 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="where to listen (default: 127.0.0.1)")
    add("--port", type=int, default=8100, help="0 takes any free one (default: 8100)")
    add("--model", metavar="NAME", help="the name it goes by (default: the shape's)")
    add(
        "--capacity-blocks",
        type=int,
        metavar="N",
        help="of the cache (default: half of the free memory)",
    )
    add(
        "--max-model-len",
        type=int,
        metavar="N",
        help="of prompt and reply (default: the model's)",
    )
    add("--max-queued", type=int, default=256, metavar="N", help="waiting requests beyond which 503 is answered")
    add("--max-running", type=int, default=16, metavar="N", help="replies that are computed together")
    add(
        "--prefill-tokens",
        type=int,
        default=1024,
        metavar="N",
        help="of a prompt between two steps of replies",
    )
    add("--max-body-bytes", type=int, default=32 << 20, metavar="N", help="larger bodies are answered 413")
    add("--max-sessions", type=int, default=65_536, metavar="N", help="whose last chain is remembered for hints")
    add("--default-output-tokens", type=int, default=64, metavar="N", help="of a reply whose request names no limit")
    add("--no-cached-tokens-report", action="store_true", help="do not report cached tokens in `usage`")
    add("--per-request-metrics", action="store_true", help="add `metrics` to replies, as vLLM's flag of this name")
    add("--json", action="store_true", help="print the address as JSON")


def run(args: argparse.Namespace) -> int:
    ready = prepare(args)
    listener = _listen(args.host, args.port)
    app = build(args, ready)
    _announce(args, listener)
    config = uvicorn.Config(
        app.asgi(),
        log_level="warning",
        access_log=False,
        http="h11",
        ws="none",
        lifespan="on",
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=5,
    )
    uvicorn.Server(config).run(sockets=[listener])
    return 0


def build(args: argparse.Namespace, ready: Ready) -> App:
    """The model, its cache, and the routes in front of them."""
    _check(args)
    shape = ready.shape.of_layers(ready.held_layers)
    block_bytes = shape.kv_bytes_per_token(ready.dtype.itemsize) * args.block_tokens
    free = devices.free_bytes(ready.device) - ready.weight_bytes
    capacity = args.capacity_blocks or max(1, min(free // 2, _BYTES_OF_BLOCKS) // block_bytes)
    if capacity * block_bytes > free:
        raise SetupError(f"--capacity-blocks {capacity}: the free memory has room for {max(0, free // block_bytes)}")
    room = capacity * args.block_tokens
    longest = args.max_model_len or min(ready.shape.context_tokens, room)
    if longest > room:
        raise SetupError(f"--max-model-len {longest}: {capacity} blocks of {args.block_tokens} tokens hold {room}")
    engine = Engine(
        random_decoder(shape, ready.device, ready.dtype, args.seed),
        KvPool(shape, capacity, args.block_tokens, ready.device, ready.dtype),
        Vocabulary(shape.vocabulary),
        EngineLimits(args.max_queued, args.max_running, args.prefill_tokens, args.max_sessions),
    )
    limits = Limits(args.model or shape.name, longest, args.block_tokens, args.default_output_tokens)
    return App(engine, Surface(limits, args.max_body_bytes, not args.no_cached_tokens_report, args.per_request_metrics))


def _check(args: argparse.Namespace) -> None:
    for name in (
        "capacity_blocks",
        "max_model_len",
        "max_running",
        "prefill_tokens",
        "max_body_bytes",
        "max_sessions",
        "default_output_tokens",
    ):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise SetupError(f"--{name.replace('_', '-')} {value}: expected at least 1")
    if args.max_queued < 0:
        raise SetupError(f"--max-queued {args.max_queued}: expected at least 0")


def _listen(host: str, port: int) -> socket.socket:
    """Before the model is built, so that a taken port is told at once."""
    if not 0 <= port < 1 << 16:
        raise SetupError(f"--port {port}: expected 0 to 65535")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise SetupError(f"cannot listen on {host}:{port}: {error}") from None
    return listener


def _announce(args: argparse.Namespace, listener: socket.socket) -> None:
    """One line, so that a script can read the address and go on."""
    listener.listen(1024)
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    print(json.dumps({"url": url}) if args.json else f"tailroute-torch listens on {url}", flush=True)
