"""The cache's order, without anything clever: every answer is computed anew from what was said of each block."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(eq=False)
class Entry:
    parent: bytes | None
    held: int = 0
    # When it was given back last.
    released: int = 0
    by_hint: bool = False
    distance: int = 0
    # Its place among those that may go first: marked, and so is all below it.
    key: int = 0
    first: bool = False


@dataclass
class NaiveCache:
    capacity: int
    private: int = 0
    clock: int = 0
    tail: int = 0
    entries: dict[bytes, Entry] = field(default_factory=dict)

    def acquire(self, chain: list[bytes]) -> list[bytes]:
        held = []
        for name in chain:
            if name not in self.entries:
                break
            held.append(name)
            self._hold(name)
        return held

    def take(self) -> bool:
        if len(self.entries) + self.private >= self.capacity:
            order = self.order()
            if not order:
                return False
            assert not self._below(order[0])
            del self.entries[order[0]]
            self._enter()
        self.private += 1
        return True

    def store(self, held: list[bytes], name: bytes) -> None:
        self.private -= 1
        if name not in self.entries:
            self.entries[name] = Entry(held[-1] if held else None)
        self._hold(name)
        held.append(name)

    def release(self, held: list[bytes], keep: int | None, distances: list[int] | None) -> None:
        for at in reversed(range(len(held))):
            entry = self.entries[held[at]]
            entry.held -= 1
            if not entry.held:
                self.clock += 1
                entry.released, entry.by_hint = self.clock, keep is not None and at >= keep
                entry.distance = distances[at] if distances else 0
                self._enter()

    def mark(self, tail: list[bytes]) -> None:
        for name in tail:
            if name in self.entries and not self.entries[name].held:
                self.entries[name].by_hint = True
                self._enter()

    def set_tail(self, tokens: int) -> None:
        self.tail = tokens
        self._enter()

    def order(self) -> list[bytes]:
        free = [name for name, entry in self.entries.items() if not entry.held]

        def place(name: bytes) -> tuple[bool, int, int]:
            entry = self.entries[name]
            # Where two have one key, the one below was released first.
            return (not entry.first, entry.key if entry.first else 0, entry.released)

        return sorted(free, key=place)

    def _hold(self, name: bytes) -> None:
        entry = self.entries[name]
        entry.held, entry.first = entry.held + 1, False

    def _below(self, name: bytes) -> list[Entry]:
        return [entry for entry in self.entries.values() if entry.parent == name]

    def _is_ready(self, name: bytes) -> bool:
        entry = self.entries[name]
        marked = entry.by_hint or 0 < entry.distance <= self.tail
        return marked and not entry.held and all(child.first for child in self._below(name))

    def _enter(self) -> None:
        """Until nothing changes: whatever is marked, is not held, and has only such below it."""
        while gone := [name for name, entry in self.entries.items() if entry.first and not self._is_ready(name)]:
            for name in gone:
                self.entries[name].first = False
        for name in sorted(self.entries, key=lambda name: self.entries[name].released):
            above: bytes | None = name
            while above is not None and not self.entries[above].first and self._is_ready(above):
                entry = self.entries[above]
                self.clock += entry.by_hint
                entry.first, entry.key = True, max(entry.key, self.clock if entry.by_hint else entry.released)
                above = entry.parent
                if above is not None:
                    self.entries[above].key = max(self.entries[above].key, entry.key)
