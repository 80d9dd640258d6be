"""Sessions, hints and the objective, on top of the prefix cache.

A hint names a session, and a session is the chain of its last finished turn. A hint for a session with a turn in the
engine waits for that turn's release (or for its time to live), because the release decides the marks.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .cache import BlockHash, Lease, PrefixCache

KINDS = ("trim", "ended", "moved", "protect")


@dataclass(frozen=True)
class Hint:
    """What to do to whose cache."""

    kind: str
    session: str
    # How much of the chain stays (protect: is protected); None: nothing (protect: all).
    keep_tokens: int | None = None
    # Hints of one session older than the newest seen are ignored.
    epoch: int = 0
    # After which the hint means nothing; None: it keeps.
    ttl_ms: float | None = None


@dataclass(frozen=True)
class Objective:
    """The T-LRU budget of turns that carry none of their own."""

    xi_tokens: float
    next_prompt_tokens: float
    epoch: int = 0
    # How long it is in force unless it is renewed; None: for good.
    ttl_ms: float | None = None
    # Whether this engine is to evict by it; if not, only what hints name goes first.
    t_lru: bool = True
    # Where it comes from, for the status.
    ttft_objective_ms: float | None = None

    @property
    def tail_tokens(self) -> float:
        """At the end of each conversation, that may go first: all but the budget."""
        return max(0.0, self.xi_tokens - self.next_prompt_tokens) if self.t_lru else 0.0


@dataclass(frozen=True)
class CacheTerms:
    """What a request says of its cache."""

    session: str | None = None
    # Tokens at the end of the finished turn that may go first.
    evict_first_tail: int | None = None


@dataclass
class _Session:
    chain: list[BlockHash] = field(default_factory=list)
    epoch: int = 0
    in_engine: int = 0
    pending: Hint | None = None
    pending_until_ms: float = math.inf


@dataclass
class HintCounts:
    """What became of hints."""

    applied: int = 0
    pending: int = 0
    expired: int = 0
    stale: int = 0
    unknown: int = 0
    rejected: int = 0


class Memory:
    """The cache and what hangs on it. ``now_ms`` is of any clock that does not go back."""

    def __init__(self, capacity_blocks: int, block_tokens: int, max_sessions: int) -> None:
        self.cache = PrefixCache(capacity_blocks)
        self.block_tokens = block_tokens
        # The newest, in force or not.
        self.objective: Objective | None = None
        self._objective_came_ms = 0.0
        self.hints = HintCounts()
        self._max_sessions = max_sessions
        self._sessions: OrderedDict[str, _Session] = OrderedDict()

    @property
    def sessions(self) -> int:
        return len(self._sessions)

    def arrived(self, terms: CacheTerms) -> None:
        if terms.session is not None:
            self._touch(terms.session).in_engine += 1

    def finished(
        self, now_ms: float, terms: CacheTerms, lease: Lease, chain: Sequence[BlockHash], history: int
    ) -> None:
        """A turn is over, or was given up: its blocks are given back. ``history``: tokens of prompt and reply."""
        self._expire(now_ms)
        if terms.evict_first_tail is None:
            self.cache.release(lease, None, [history - at * self.block_tokens for at in range(len(lease.nodes))])
        else:
            self.cache.release(lease, -(-max(0, history - terms.evict_first_tail) // self.block_tokens))
        if terms.session is None:
            return
        session = self._touch(terms.session)
        session.in_engine = max(0, session.in_engine - 1)
        if chain:
            session.chain = list(chain)
        if session.in_engine or session.pending is None:
            return
        pending, session.pending = session.pending, None
        if now_ms >= session.pending_until_ms:
            self.hints.expired += 1
        else:
            self._apply(session, pending)

    def hint(self, now_ms: float, hint: Hint) -> str:
        """Takes a hint and says what became of it: a name of ``HintCounts``."""
        outcome = self._take_hint(now_ms, hint)
        if outcome not in ("applied", "pending"):
            setattr(self.hints, outcome, getattr(self.hints, outcome) + 1)
        return outcome

    def take(self, now_ms: float) -> int | None:
        """A block to compute into; ``None`` where everything is held."""
        self._expire(now_ms)
        return self.cache.take()

    def set_objective(self, now_ms: float, objective: Objective) -> bool:
        """Takes an objective unless a newer one has come, and applies it to what is cached."""
        if self.objective is not None and objective.epoch < self.objective.epoch:
            return False
        self.objective, self._objective_came_ms = objective, now_ms
        self.cache.set_tail(objective.tail_tokens)
        return True

    def objective_status(self, now_ms: float) -> dict[str, Any] | None:
        """The newest objective, its age and whether its time is over."""
        if self.objective is None:
            return None
        self._expire(now_ms)
        age_s = (now_ms - self._objective_came_ms) / 1e3
        return {**asdict(self.objective), "age_s": age_s, "expired": self._is_expired(now_ms)}

    def _is_expired(self, now_ms: float) -> bool:
        ttl_ms = self.objective.ttl_ms if self.objective else None
        return ttl_ms is not None and now_ms - self._objective_came_ms >= ttl_ms

    def _expire(self, now_ms: float) -> None:
        if self._is_expired(now_ms):
            self.cache.set_tail(0.0)

    def _take_hint(self, now_ms: float, hint: Hint) -> str:
        if hint.ttl_ms is not None and hint.ttl_ms <= 0:
            return "expired"
        session = self._sessions.get(hint.session)
        if session is None:
            return "unknown"
        if hint.epoch < session.epoch:
            return "stale"
        session.epoch = hint.epoch
        if session.in_engine:
            session.pending = hint
            session.pending_until_ms = math.inf if hint.ttl_ms is None else now_ms + hint.ttl_ms
            return "pending"
        self._apply(session, hint)
        return "applied"

    def _apply(self, session: _Session, hint: Hint) -> None:
        self.hints.applied += 1
        keep = None if hint.keep_tokens is None else -(-hint.keep_tokens // self.block_tokens)
        if hint.kind == "protect":
            self.cache.release(self.cache.acquire(session.chain[:keep]), None)
        else:
            self.cache.mark(reversed(session.chain[keep or 0 :]))

    def _touch(self, name: str) -> _Session:
        session = self._sessions.get(name)
        if session is None:
            if len(self._sessions) >= self._max_sessions:
                self._sessions.popitem(last=False)
            session = self._sessions[name] = _Session()
        self._sessions.move_to_end(name)
        return session
