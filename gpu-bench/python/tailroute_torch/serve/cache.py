"""The prefix cache over the blocks of a pool, in the order of Tail-Optimized LRU.

A prompt is cached as a chain of blocks; a block is worth having only while all before it are resident. So the cache is
prefix-closed: a block leaves only when nothing hangs below it. Room is found in three bands:

1. blank blocks, never used or given back;
2. evict-first: what a release, a hint or the objective says cannot help any more, by when it was released, or named
   by the hint;
3. least recently used.

The objective marks what begins at most ``tail`` tokens before the end of its conversation. Each block remembers that
distance from its last release on, so a new tail applies to what is cached already.

A released chain is appended deepest first, and whoever uses a block uses all before it, so a parent always stands
behind its children. Four rules decide the details. The last release decides the mark: a block that another sequence
still holds takes none. A hit clears the mark. A marked block waits in band 3 while something unmarked, or held, hangs
below it (``blockers`` counts those). And blank blocks come first, or cached data would go while room is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

BlockHash = bytes


@dataclass(eq=False)
class _Node:
    hash: BlockHash
    block: int
    parent: _Node | None
    pins: int = 0
    # What its last release and hints since then said of it; of one that is held it means nothing. The distance is
    # that of its beginning to the end of its conversation, in tokens; 0: the objective does not apply to it.
    by_hint: bool = False
    distance: int = 0
    # When it was released last.
    released: int = 0
    # Its place in the evict-first band: behind all blocks below it.
    key: int = 0
    in_evict_first: bool = False
    children: int = 0
    # Children that are not in the evict-first band.
    blockers: int = 0


@dataclass
class Lease:
    """What a running sequence holds: the beginning of its chain. To be given back with ``release``."""

    nodes: list[_Node] = field(default_factory=list)

    @property
    def blocks(self) -> list[int]:
        return [node.block for node in self.nodes]


class PrefixCache:
    """See the module's documentation. Counts are in blocks."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.pinned = 0
        self.removed = 0
        self.stored = 0
        # From the evict-first band: named by a release or a hint, and by the objective alone.
        self.evicted_by_hint = 0
        self.evicted_by_xi = 0
        # Taken, for what a sequence is computing, and not cached yet.
        self.private = 0
        self._blank = list(range(capacity - 1, -1, -1))
        self._by_hash: dict[BlockHash, _Node] = {}
        self._evict_first: dict[_Node, None] = {}
        self._lru: dict[_Node, None] = {}
        # Whether the evict-first band is in order.
        self._is_sorted = True
        self._tail = 0.0
        # Counts releases and hints.
        self._stamp = 0

    @property
    def used(self) -> int:
        return len(self._by_hash)

    @property
    def evict_first(self) -> int:
        return len(self._evict_first)

    def resident(self, chain: Sequence[BlockHash]) -> int:
        """How many leading blocks of ``chain`` are resident. Moves and marks nothing."""
        return next((at for at, name in enumerate(chain) if name not in self._by_hash), len(chain))

    def acquire(self, chain: Sequence[BlockHash]) -> Lease:
        """Pins what is resident of ``chain``; a hit clears the mark."""
        lease = Lease([self._by_hash[name] for name in chain[: self.resident(chain)]])
        for node in lease.nodes:
            self._pin(node)
        return lease

    def take(self) -> int | None:
        """A block to compute into, evicting what goes first; ``None`` where everything is held."""
        if not self._blank:
            victim = next(iter(self._in_order() or self._lru), None)
            if victim is None:
                return None
            self._drop(victim)
        self.private += 1
        return self._blank.pop()

    def give_back(self, block: int) -> None:
        """A block that was taken and not stored."""
        self.private -= 1
        self._blank.append(block)

    def store(self, lease: Lease, name: BlockHash, block: int) -> int:
        """A taken block is computed, and is the next one of the lease's chain.

        Returns the block that has it: another one where another sequence had computed the same.
        """
        node = self._by_hash.get(name)
        if node is None:
            parent = lease.nodes[-1] if lease.nodes else None
            node = _Node(name, block, parent)
            self._by_hash[name] = node
            self.private -= 1
            self.stored += 1
            if parent is not None:
                parent.children += 1
                parent.blockers += 1
        else:
            self.give_back(block)
        self._pin(node)
        lease.nodes.append(node)
        return node.block

    def release(self, lease: Lease, keep_blocks: int | None, distances: Sequence[int] | None = None) -> None:
        """Gives a sequence's blocks back. Those past ``keep_blocks`` (``None``: none) are marked, and with
        ``distances`` to the end of the conversation those that the objective marks."""
        for at in range(len(lease.nodes) - 1, -1, -1):
            node = lease.nodes[at]
            node.pins -= 1
            if node.pins:
                continue
            self.pinned -= 1
            node.by_hint = keep_blocks is not None and at >= keep_blocks
            node.distance = distances[at] if distances else 0
            node.released = self._next_stamp()
            self._lru[node] = None
            self._settle(node)
        lease.nodes = []

    def mark(self, tail: Iterable[BlockHash]) -> None:
        """Marks resident blocks, deepest first. Blocks that are held take no mark: their release will decide."""
        for name in tail:
            node = self._by_hash.get(name)
            if node is None or node.pins:
                continue
            node.by_hint = True
            self._settle(node)

    def set_tail(self, tokens: float) -> None:
        """The objective marks those blocks that begin at most so many tokens before the end of a conversation."""
        if tokens == self._tail:
            return
        self._tail = tokens
        for node in [node for node in self._evict_first if not self._is_marked(node)]:
            self._leave_evict_first(node)
        self._lru = dict.fromkeys(sorted(self._lru, key=lambda node: node.released))
        for node in list(self._lru):
            self._settle(node)

    def check(self) -> None:
        """What always holds."""
        nodes = list(self._by_hash.values())
        free = [node for node in nodes if not node.pins]
        assert set(free) == set(self._evict_first) | set(self._lru), "each free block is in a band"
        assert not set(self._evict_first) & set(self._lru), "and in no other"
        assert self.pinned == len(nodes) - len(free)
        assert len(self._blank) + self.private + len(nodes) == self.capacity, "no block is lost"
        held = [node.block for node in nodes]
        assert len(set(held) | set(self._blank)) == len(held) + len(self._blank), "or held twice"
        for node in nodes:
            children = [child for child in nodes if child.parent is node]
            assert node.children == len(children)
            assert node.blockers == sum(not child.in_evict_first for child in children)
            assert node.in_evict_first == (node in self._evict_first)
            assert node.pins or node.in_evict_first == (self._is_marked(node) and not node.blockers)
            assert node.parent is None or self._by_hash.get(node.parent.hash) is node.parent, "prefix-closed"
        released = [node.released for node in self._lru]
        assert released == sorted(released)

    def order(self) -> list[BlockHash]:
        """What would be evicted, first to last, if nothing else happened."""
        return [node.hash for band in (self._in_order(), self._lru) for node in band]

    def _in_order(self) -> dict[_Node, None]:
        if not self._is_sorted:
            self._evict_first = dict.fromkeys(sorted(self._evict_first, key=lambda node: node.key))
            self._is_sorted = True
        return self._evict_first

    def _pin(self, node: _Node) -> None:
        node.pins += 1
        if node.pins > 1:
            return
        self.pinned += 1
        self._leave_evict_first(node)
        self._lru.pop(node, None)

    def _next_stamp(self) -> int:
        self._stamp += 1
        return self._stamp

    def _is_marked(self, node: _Node) -> bool:
        return node.by_hint or 0 < node.distance <= self._tail

    def _settle(self, node: _Node | None) -> None:
        """Moves it to the evict-first band if it is marked and nothing is in its way, and then what waits for it."""
        while node is not None and node in self._lru and self._is_marked(node) and node.blockers == 0:
            del self._lru[node]
            node.in_evict_first = True
            node.key = max(node.key, self._next_stamp() if node.by_hint else node.released)
            last = next(reversed(self._evict_first), None)
            self._evict_first[node] = None
            self._is_sorted &= last is None or last.key <= node.key
            if node.parent is not None:
                node.parent.key = max(node.parent.key, node.key)
                node.parent.blockers -= 1
            node = node.parent

    def _leave_evict_first(self, node: _Node | None) -> None:
        """Moves it to the last band, and what is above it: that waits for it again."""
        while node is not None and node.in_evict_first:
            node.in_evict_first = False
            del self._evict_first[node]
            self._lru[node] = None
            if node.parent is not None:
                node.parent.blockers += 1
            node = node.parent

    def _drop(self, node: _Node) -> None:
        band = self._evict_first if node.in_evict_first else self._lru
        del band[node]
        del self._by_hash[node.hash]
        self._blank.append(node.block)
        self.removed += 1
        if node.in_evict_first and node.by_hint:
            self.evicted_by_hint += 1
        elif node.in_evict_first:
            self.evicted_by_xi += 1
        parent = node.parent
        if parent is None:
            return
        parent.children -= 1
        if not node.in_evict_first:
            parent.blockers -= 1
            self._settle(parent)
