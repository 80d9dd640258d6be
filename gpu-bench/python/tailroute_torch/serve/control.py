"""The ``tailroute`` dialect: what is understood, hints, the objective."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import Any

from . import fields
from .engine import Engine
from .errors import ApiError, bad_request
from .memory import KINDS, Hint, HintCounts, Objective
from .request import EVICT_FIRST_HEADER

_MOST_HINTS = 4096


def capabilities(engine: Engine, model: str) -> dict[str, Any]:
    block = engine.block_tokens
    return {
        "dialect": "tailroute",
        "version": 1,
        "engine": "tailroute-torch",
        "model": model,
        "hints": list(KINDS),
        "objective": True,
        "objective_ttl": True,
        "evict_first_header": EVICT_FIRST_HEADER,
        "max_hints": _MOST_HINTS,
        "block_size": block,
        "capacity_tokens": engine.memory.cache.capacity * block,
        "cache_policy": "lru",
    }


def take_hints(engine: Engine, body: bytes) -> dict[str, int]:
    """Applies what it can and says how many fared how. One bad hint spoils no other."""
    hints = fields.parse_object(body).get("hints")
    if not isinstance(hints, list):
        raise bad_request("`hints` must be a list.")
    if len(hints) > _MOST_HINTS:
        raise bad_request(f"At most {_MOST_HINTS} hints per request.")
    counts = HintCounts()
    with engine.lock:
        for said in hints:
            try:
                outcome = engine.memory.hint(1e3 * time.monotonic(), _hint(said))
            except ApiError:
                outcome = "rejected"
                engine.memory.hints.rejected += 1
            setattr(counts, outcome, getattr(counts, outcome) + 1)
    return dataclasses.asdict(counts)


def _hint(said: Any) -> Hint:
    if not isinstance(said, dict) or said.get("kind") not in KINDS:
        raise bad_request(f"`kind` must be one of {', '.join(KINDS)}.")
    session = fields.text(said, "session_id")
    if session is None:
        raise bad_request("`session_id` is required.")
    keep = fields.whole(said, "keep_tokens", 0)
    epoch = fields.whole(said, "epoch", 0, (1 << 64) - 1) or 0
    return Hint(said["kind"], session, keep, epoch, fields.number(said, "ttl_ms"))


def set_objective(engine: Engine, body: bytes) -> dict[str, Any]:
    said = fields.parse_object(body)
    xi, more = fields.number(said, "xi_tokens"), fields.number(said, "next_prompt_tokens")
    if xi is None or more is None or xi < 0 or more < 0:
        raise bad_request("`xi_tokens` and `next_prompt_tokens` must be finite and at least 0.")
    epoch, ttl = fields.whole(said, "epoch", 0, (1 << 64) - 1) or 0, fields.number(said, "ttl_ms")
    if ttl is not None and ttl <= 0:
        raise bad_request("`ttl_ms` must be above 0.")
    t_lru = fields.boolean(said, "t_lru")
    wanted = Objective(xi, more, epoch, ttl, t_lru is not False, _ttft_objective(said))
    now_ms = 1e3 * time.monotonic()
    with engine.lock:
        taken = engine.memory.set_objective(now_ms, wanted)
        return {"applied": taken, "objective": engine.memory.objective_status(now_ms)}


def _ttft_objective(said: dict[str, Any]) -> float | None:
    """For information, so it is no error if it is none."""
    with contextlib.suppress(ApiError):
        value = fields.number(said, "ttft_objective_ms")
        return value if value is not None and value >= 0 else None
    return None
