"""Which blocks each conversation last had: a bounded map, the one that was silent longest goes first."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from dataclasses import dataclass, field


@dataclass
class PendingHint:
    """A hint that waits for its conversation's running turn, whose release decides the marks."""

    kind: str
    keep_tokens: int | None
    expires: float | None


@dataclass
class Session:
    """What is known of a conversation."""

    # For each group of layers: its block size, and the blocks of the last finished turn with what they held.
    chains: list[tuple[int, array, array]] = field(default_factory=list)
    # Of the newest hint seen.
    epoch: int = 0
    # Turns queued or running.
    in_engine: int = 0
    pending: PendingHint | None = None

    def size(self) -> int:
        """Blocks named."""
        return sum(len(ids) for _, ids, _ in self.chains)


class Sessions:
    """At most ``max_sessions`` conversations, naming at most ``max_blocks`` blocks between them."""

    def __init__(self, max_sessions: int, max_blocks: int) -> None:
        self._max_sessions = max_sessions
        self._max_blocks = max_blocks
        self._by_name: OrderedDict[str, Session] = OrderedDict()
        self._blocks = 0

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> Session | None:
        """What is known of a conversation, if anything is."""
        return self._by_name.get(name)

    def arrived(self, name: str) -> None:
        """A turn of it is in the engine."""
        self._touch(name).in_engine += 1
        self._shrink()

    def finished(self, name: str, chains: list[tuple[int, array, array]], counted: bool) -> PendingHint | None:
        """A turn of it has left. Gives the hint that waited, if no other turn is left."""
        session = self._touch(name)
        if counted:
            session.in_engine = max(0, session.in_engine - 1)
        if any(len(ids) for _, ids, _ in chains):
            self._blocks -= session.size()
            session.chains = chains
            self._blocks += session.size()
        pending = None
        if session.in_engine == 0:
            pending, session.pending = session.pending, None
        self._shrink()
        return pending

    def clear(self) -> None:
        """Forgets everything but which turns are in the engine."""
        self._blocks = 0
        for session in self._by_name.values():
            session.chains = []

    def _touch(self, name: str) -> Session:
        session = self._by_name.get(name)
        if session is None:
            session = self._by_name[name] = Session()
        else:
            self._by_name.move_to_end(name)
        return session

    def _shrink(self) -> None:
        while len(self._by_name) > 1 and (len(self._by_name) > self._max_sessions or self._blocks > self._max_blocks):
            _, gone = self._by_name.popitem(last=False)
            self._blocks -= gone.size()
