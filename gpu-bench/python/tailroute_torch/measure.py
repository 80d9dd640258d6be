"""``measure``: prefills on demand, a line in and a line out, for ``gpu-bench gpu``.

The first line out is ``{"hello": {...}}``: what is measured, and on what. Then each line in, ``{"cached_tokens": h,
"uncached_tokens": u, "repeat": k}``, is answered by one line: the sample, or ``{"error": ...}`` naming the field that
is wrong. The end of the input ends it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from typing import Any, TextIO

import torch

from . import __version__, devices
from .options import SetupError, prepare
from .prefill import Prefills, TooLongError
from .roofline import Peaks

# Longest line that is read: a request is three numbers.
_LONGEST_LINE = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--context-tokens",
        type=int,
        metavar="N",
        help="longest prompt, cached and new tokens together (default: the model's, or as much as fits)",
    )


def run(args: argparse.Namespace) -> int:
    prefills, facts = start(args)
    answer_lines(prefills, facts, sys.stdin, sys.stdout)
    return 0


def start(args: argparse.Namespace) -> tuple[Prefills, dict[str, Any]]:
    """Builds the model and says what it is."""
    ready = prepare(args)
    shape, dtype = ready.shape, ready.dtype
    fits = devices.free_bytes(ready.device) * 8 // 10 - ready.weight_bytes
    # The prefix, and as much again for what is new.
    per_token = 2 * shape.of_layers(ready.held_layers).kv_bytes_per_token(dtype.itemsize)
    longest = max(0, fits // per_token)
    context = min(shape.context_tokens, longest) if args.context_tokens is None else args.context_tokens
    if not args.block_tokens <= context <= longest:
        raise SetupError(
            f"--context-tokens {context}: expected {args.block_tokens} to {longest}, which the free memory has room for"
            " (fewer --layers take less)"
        )
    peaks = devices.peaks(ready.device, dtype)
    prefills = Prefills(shape, ready.held_layers, ready.device, dtype, context, args.block_tokens, args.seed)
    # The first prefill loads libraries and kernels.
    prefills.measure(0, min(64, context))
    return prefills, hello(prefills, peaks, args.block_tokens)


def hello(prefills: Prefills, peaks: Peaks, block_tokens: int) -> dict[str, Any]:
    shape, held = prefills.shape, prefills.held_layers
    model = f"{shape.name} ({devices.dtype_name(prefills.dtype)}, random weights"
    if held < shape.layers:
        model += f"; {held} of {shape.layers} layers, times of layers extrapolated"
    return {
        "engine": f"tailroute-torch {__version__}",
        "device": devices.device_name(prefills.device),
        "driver": devices.driver(prefills.device),
        "model": model + ")",
        "software": f"torch {torch.__version__}, scaled_dot_product_attention over gathered blocks",
        "context_tokens": prefills.context_tokens,
        "block_tokens": block_tokens,
        "roofline": {
            "flops_per_s": peaks.flops_per_s,
            "bytes_per_s": peaks.bytes_per_s,
            "from": peaks.source,
        },
    }


def answer_lines(prefills: Prefills, facts: dict[str, Any], lines: TextIO, out: TextIO) -> None:
    """The protocol, on any pair of streams."""
    say(out, {"hello": facts})
    for line in _bounded(lines):
        say(out, answer(prefills, line))


def _bounded(stream: TextIO) -> Iterable[str]:
    """Lines; a longer one in pieces, each of which is then refused."""
    while line := stream.readline(_LONGEST_LINE):
        yield line


def answer(prefills: Prefills, line: str) -> dict[str, Any]:
    try:
        cached, new = read(line)
        timed = prefills.measure(cached, new)
    except TooLongError as error:
        return {"error": f"`cached_tokens` + `uncached_tokens`: {error}"}
    except ValueError as error:
        return {"error": str(error)}
    return {
        "cached_tokens": timed.cached_tokens,
        "uncached_tokens": timed.uncached_tokens,
        "prefill_ms": timed.prefill_ms,
        "flops": timed.work.flops,
        "bytes": timed.work.bytes,
    }


def read(line: str) -> tuple[int, int]:
    """The two numbers of a request."""
    try:
        request = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no JSON: {error}") from None
    if not isinstance(request, dict):
        raise ValueError("expected an object with `cached_tokens`, `uncached_tokens` and `repeat`")
    for name in request:
        if name not in ("cached_tokens", "uncached_tokens", "repeat"):
            raise ValueError(f"`{name}`: unknown; expected `cached_tokens`, `uncached_tokens` and `repeat`")
    # Which repetition it is decides nothing: new tokens are drawn anew each time.
    _whole(request, "repeat", 0, default=0)
    return _whole(request, "cached_tokens", 0), _whole(request, "uncached_tokens", 1)


def _whole(request: dict[str, Any], name: str, least: int, default: int | None = None) -> int:
    value = request.get(name, default)
    if value is None:
        raise ValueError(f"`{name}`: missing")
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"`{name}`: expected a whole number of at least {least}, not {json.dumps(value)}")
    return value


def say(out: TextIO, message: dict[str, Any]) -> None:
    out.write(json.dumps(message) + "\n")
    out.flush()
