"""The cache's order, without anything clever: every answer is computed anew from what was said of each block."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(eq=False)
class Entry:
    parent: bytes | None
    held: int = 0
    # When it was given back last.
    released: int = 0
    marked: bool = False
    # When it became one that may go first: marked, and so is all below it.
    entered: int | None = None


@dataclass
class NaiveCache:
    capacity: int
    private: int = 0
    clock: int = 0
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
            free = {name: entry for name, entry in self.entries.items() if not entry.held}
            leaves = [name for name in free if not self._below(name)]
            if not leaves:
                return False
            first = [name for name in leaves if free[name].entered is not None]
            by_entry = min(first, key=lambda name: free[name].entered or 0, default=None)
            del self.entries[by_entry or min(leaves, key=lambda name: free[name].released)]
            self._enter()
        self.private += 1
        return True

    def store(self, held: list[bytes], name: bytes) -> None:
        self.private -= 1
        if name not in self.entries:
            self.entries[name] = Entry(held[-1] if held else None)
        self._hold(name)
        held.append(name)

    def release(self, held: list[bytes], keep: int | None) -> None:
        for at in reversed(range(len(held))):
            entry = self.entries[held[at]]
            entry.held -= 1
            if not entry.held:
                self.clock += 1
                entry.released, entry.marked = self.clock, keep is not None and at >= keep
                self._enter()

    def mark(self, tail: list[bytes]) -> None:
        for name in tail:
            if name in self.entries and not self.entries[name].held:
                self.entries[name].marked = True
                self._enter()

    def _hold(self, name: bytes) -> None:
        entry = self.entries[name]
        entry.held, entry.marked, entry.entered = entry.held + 1, False, None

    def _below(self, name: bytes) -> list[Entry]:
        return [entry for entry in self.entries.values() if entry.parent == name]

    def _enter(self) -> None:
        """Until nothing changes: whatever is marked, is not held, and has only such below it."""
        changed = True
        while changed:
            changed = False
            for name, entry in self.entries.items():
                ready = entry.marked and not entry.held and entry.entered is None
                if ready and all(child.entered is not None for child in self._below(name)):
                    self.clock += 1
                    entry.entered, changed = self.clock, True
