"""What is to be dropped first: requests' own hints, hints from outside, and the objective, applied to a block pool.

A finished request's blocks are judged by its own hint, if it has one: the last N tokens of the turn may go first, exact
whatever length the answer turned out to have. Otherwise the objective that is in force at eviction judges them: of a
history of L tokens the budget max(0, L + Q - xi) is kept, rounded up to blocks, where xi is how many uncached tokens
fit in the time-to-first-token objective and Q is what the next prompt is expected to add. An objective that is not
renewed within its time to live is no longer in force. Without one and without hints, nothing is marked.

A hint from outside names a session, which is the chain of that conversation's last finished turn, or block hashes. For
a conversation with a turn in the engine it waits for that turn's release (or for its time to live).

Everything here runs in the engine core's process, between two steps of its loop.
"""

from __future__ import annotations

import math
import sys
import time
from array import array
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from .bands import NONE, BandedFreeQueue
from .sessions import PendingHint, Sessions

KINDS = ("trim", "ended", "protect")
OUTCOMES = ("applied", "pending", "expired", "stale", "unknown", "rejected")
# The in-request hint, in `vllm_xargs` or in `kv_transfer_params`.
EVICT_FIRST = "tailroute_evict_first_tokens"
MAX_SESSIONS = 65_536
# Blocks that sessions may name, as a multiple of the pool's.
BLOCKS_NAMED = 4
MAX_NAME = 1024
MAX_HASHES = 65_536


@dataclass
class Objective:
    """The budget's terms, in tokens, for requests that bring none of their own."""

    xi_tokens: float
    next_prompt_tokens: float
    epoch: int = 0
    # How long it is in force unless it is renewed; None: for good.
    ttl_ms: float | None = None
    # Whether this engine is to evict by it; if not, only what hints name goes first.
    t_lru: bool = True
    # Where it comes from, for the status.
    ttft_objective_ms: float | None = None

    @classmethod
    def of(cls, given: Any) -> Objective:
        """Reads a JSON object. Raises ValueError with what is wrong with it."""
        if not isinstance(given, dict):
            raise ValueError("expected a JSON object")
        xi, more = given.get("xi_tokens"), given.get("next_prompt_tokens")
        if not (_is_finite(xi) and _is_finite(more) and xi >= 0 and more >= 0):
            raise ValueError("`xi_tokens` and `next_prompt_tokens` must be finite and at least 0.")
        epoch, ttl, t_lru = given.get("epoch", 0), given.get("ttl_ms"), given.get("t_lru", True)
        if not _is_whole(epoch):
            raise ValueError("`epoch` must be a whole number of at least 0.")
        if ttl is not None and not (_is_finite(ttl) and ttl > 0):
            raise ValueError("`ttl_ms` must be finite and above 0.")
        if not isinstance(t_lru, bool):
            raise ValueError("`t_lru` must be true or false.")
        ttft = given.get("ttft_objective_ms")
        ttft = float(ttft) if _is_finite(ttft) and ttft >= 0 else None
        return cls(float(xi), float(more), epoch, None if ttl is None else float(ttl), t_lru, ttft)

    def tail(self) -> float:
        """Tokens at the end of each conversation that may go first: all but the budget."""
        return max(0.0, self.xi_tokens - int(self.next_prompt_tokens)) if self.t_lru else 0.0


@dataclass
class Hint:
    """One hint, checked."""

    kind: str
    session: str | None
    hashes: list[int | bytes] | None
    keep_tokens: int | None
    epoch: int
    ttl_ms: float | None

    @classmethod
    def of(cls, given: Any) -> Hint:
        """Reads a JSON object. Raises ValueError if it is not a hint."""
        if not isinstance(given, dict) or given.get("kind") not in KINDS:
            raise ValueError("not a hint")
        session, hashes = given.get("session_id"), given.get("block_hashes")
        if (session is None) == (hashes is None):
            raise ValueError("exactly one of `session_id` and `block_hashes`")
        if session is not None and not (isinstance(session, str) and 0 < len(session) <= MAX_NAME):
            raise ValueError("`session_id`")
        keep, epoch, ttl = given.get("keep_tokens"), given.get("epoch", 0), given.get("ttl_ms")
        if keep is not None and not _is_whole(keep):
            raise ValueError("`keep_tokens`")
        if not _is_whole(epoch):
            raise ValueError("`epoch`")
        if ttl is not None and not (_is_number(ttl) and not math.isnan(ttl)):
            raise ValueError("`ttl_ms`")
        read = None if hashes is None else [_block_hash(value) for value in _short_list(hashes)]
        return cls(given["kind"], session, read, keep, epoch, ttl)


class Director:
    """Judges blocks as they come back, and takes hints about those that are back already."""

    def __init__(self, pool: Any, groups: Iterable[Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._pool = pool
        self._queue: BandedFreeQueue = pool.free_block_queue
        # Groups of this pool whose blocks stay in their place in a conversation; others keep vLLM's own order.
        self._groups = [
            group
            for group in groups
            if group.block_pool is pool and getattr(group, "has_positionally_stable_blocks", True)
        ]
        self._clock = clock
        self._sessions = Sessions(MAX_SESSIONS, BLOCKS_NAMED * len(pool.blocks))
        # The newest, whether or not it is in force still, and when it came.
        self.objective: Objective | None = None
        self._objective_came = 0.0
        self._hints = dict.fromkeys(OUTCOMES, 0)
        self._requests_hinted = 0

    # What the engine reports.

    def arrived(self, request: Any) -> None:
        """A request is in the engine."""
        if request.session_id:
            self._sessions.arrived(request.session_id)
            request.tailroute_counted = True

    def releasing(self, request: Any, finished: bool) -> None:
        """A request is about to give its blocks back, to go on later or for good."""
        own_tail = self._own_tail(request) if finished else 0
        history, chains = request.num_tokens, []
        for group in self._groups:
            blocks, size = group.req_to_blocks.get(request.request_id, ()), group.block_size
            self._queue.link(blocks)
            ids = array("q", [NONE if block.block_hash is None else block.block_id for block in blocks])
            if own_tail is None:
                self._queue.release_by_objective(ids, range(history, history - size * len(ids), -size))
            else:
                first = -(-max(0, history - own_tail) // size) if finished else len(ids)
                self._queue.release_as(ids[:first], ids[first:])
            if finished and request.session_id:
                contents = array("q", (self._queue.content(at) if at >= 0 else 0 for at in ids))
                chains.append((size, ids, contents))
        if finished:
            request.tailroute_chains = chains

    def released(self, request: Any) -> None:
        """A finished request has given its blocks back: a hint that waited for that is applied."""
        if not request.session_id:
            return
        chains = request.__dict__.pop("tailroute_chains", [])
        counted = request.__dict__.pop("tailroute_counted", False)
        pending = self._sessions.finished(request.session_id, chains, counted)
        if pending is None:
            return
        if pending.expires is not None and self._clock() >= pending.expires:
            self._hints["expired"] += 1
        else:
            self._apply(request.session_id, pending.kind, pending.keep_tokens, just_released=True)

    def cleared(self) -> None:
        """The prefix cache was reset."""
        self._queue.all_blank()
        self._sessions.clear()

    # What comes over HTTP.

    def take_hints(self, given: list[Any]) -> list[str]:
        """Applies each hint that can be; one bad hint spoils no other. Says how each fared."""
        by_hash: dict[int | bytes, list[Any]] | None = None
        outcomes = []
        for one in given:
            try:
                hint = Hint.of(one)
            except ValueError:
                outcome = "rejected"
            else:
                if hint.hashes is not None and by_hash is None:
                    by_hash = self._cached_by_hash()
                outcome = self._take(hint, by_hash or {})
            if outcome != "applied":
                # An applied one was counted when it was applied, now or later.
                self._hints[outcome] += 1
            outcomes.append(outcome)
        return outcomes

    def set_objective(self, objective: Objective) -> bool:
        """Takes an objective unless a newer one has come, and applies it to what is cached."""
        if self.objective is not None and objective.epoch < self.objective.epoch:
            return False
        self.objective, self._objective_came = objective, self._clock()
        self._queue.set_tail(objective.tail())
        # Blocks are given up between two messages too, so that is when an objective is seen to be too old.
        self._queue.before_eviction = None if objective.ttl_ms is None else self._expire
        return True

    def status(self) -> dict[str, Any]:
        """Counters and gauges, for `/metrics` and for the capability document."""
        self._expire()
        return {
            "evicted_by_hint_blocks": self._queue.evicted_by_hint,
            "evicted_by_xi_blocks": self._queue.evicted_by_xi,
            "evicted_free_blocks": self._queue.evicted_free,
            "evicted_lru_blocks": self._queue.evicted_lru,
            "evict_first_blocks": self._queue.evict_first_blocks,
            "hints": dict(self._hints),
            "requests_hinted": self._requests_hinted,
            "sessions": len(self._sessions),
            "blocks": len(self._pool.blocks) - 1,
            "block_size": self._groups[0].block_size if self._groups else None,
            "objective": self._objective_status(),
        }

    # Within.

    def _objective_age_s(self) -> float:
        return self._clock() - self._objective_came

    def _is_in_force(self) -> bool:
        objective = self.objective
        if objective is None:
            return False
        return objective.ttl_ms is None or 1e3 * self._objective_age_s() < objective.ttl_ms

    def _expire(self) -> None:
        """Ends the objective if its time is over."""
        if self._queue.before_eviction is not None and not self._is_in_force():
            self._queue.before_eviction = None
            self._queue.set_tail(0.0)

    def _objective_status(self) -> dict[str, Any] | None:
        if self.objective is None:
            return None
        return {
            **asdict(self.objective),
            "age_s": self._objective_age_s(),
            "expired": not self._is_in_force(),
        }

    def _own_tail(self, request: Any) -> int | None:
        """Tokens at the end of a finished turn that may go first; None: the request does not say."""
        given = own_hint(request)
        if given is None:
            return None
        if not _is_whole(given):
            self._hints["rejected"] += 1
            return None
        self._requests_hinted += 1
        return int(given)

    def _take(self, hint: Hint, by_hash: dict[int | bytes, list[Any]]) -> str:
        if hint.ttl_ms is not None and hint.ttl_ms <= 0:
            return "expired"
        if hint.hashes is not None:
            return self._take_hashes(hint, by_hash)
        session = self._sessions.get(hint.session)
        if session is None:
            return "unknown"
        if hint.epoch < session.epoch:
            return "stale"
        session.epoch = hint.epoch
        if session.in_engine > 0:
            expires = None if hint.ttl_ms is None else self._clock() + hint.ttl_ms / 1e3
            session.pending = PendingHint(hint.kind, hint.keep_tokens, expires)
            return "pending"
        self._apply(hint.session, hint.kind, hint.keep_tokens)
        return "applied"

    def _take_hashes(self, hint: Hint, by_hash: dict[int | bytes, list[Any]]) -> str:
        found = [block for value in hint.hashes for block in by_hash.get(value, ())]
        if not found:
            return "unknown"
        change = self._queue.protect if hint.kind == "protect" else self._queue.mark
        # Deepest first, as a conversation is given back.
        for block in reversed(found):
            change(block)
        self._hints["applied"] += 1
        return "applied"

    def _apply(self, name: str, kind: str, keep_tokens: int | None, just_released: bool = False) -> None:
        session = self._sessions.get(name)
        if session is None:
            return
        self._hints["applied"] += 1
        for block_size, ids, contents in session.chains:
            keep = None if keep_tokens is None else -(-keep_tokens // block_size)
            if kind == "protect":
                places = range(len(ids) if keep is None else min(keep, len(ids)))
                change = self._queue.protect
            else:
                places = range(min(keep or 0, len(ids)), len(ids))
                change = self._queue.mark
            for place in reversed(places):
                at = ids[place]
                if at < 0 or self._queue.content(at) != contents[place]:
                    continue
                block = self._pool.blocks[at]
                if just_released and block.ref_cnt > 0 and kind != "protect":
                    # Another request's still, or vLLM gives it back a step later: that release will find the mark.
                    self._queue.release_as((), (at,))
                else:
                    change(block)

    def _cached_by_hash(self) -> dict[int | bytes, list[Any]]:
        """Cached blocks by their hashes, whole and as the last 8 bytes that cache events carry. One pass per message."""
        found: dict[int | bytes, list[Any]] = {}
        for block in self._pool.blocks:
            key = block.block_hash
            if key is not None:
                value = bytes(key)[:-4]
                found.setdefault(value, []).append(block)
                found.setdefault(int.from_bytes(value[-8:], "big"), []).append(block)
        return found


def own_hint(request: Any) -> Any:
    """The in-request hint as it was given, or None."""
    extra = getattr(request.sampling_params, "extra_args", None) if request.sampling_params else None
    if extra and (given := extra.get(EVICT_FIRST)) is not None:
        return given
    carried = getattr(request, "kv_transfer_params", None)
    return carried.get(EVICT_FIRST) if isinstance(carried, dict) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    # A whole number of JSON's may be too large for a float.
    return _is_number(value) and -sys.float_info.max <= value <= sys.float_info.max


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _short_list(value: Any) -> list[Any]:
    if not isinstance(value, list) or not 0 < len(value) <= MAX_HASHES:
        raise ValueError("`block_hashes`")
    return value


def _block_hash(value: Any) -> int | bytes:
    """A hash as events name it: 64 bits as a number, or all of it as hexadecimal digits."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value & (1 << 64) - 1
    if isinstance(value, str):
        return bytes.fromhex(value)
    raise ValueError("`block_hashes`")
