"""The prefix cache over the blocks of a pool, in the order of Tail-Optimized LRU.

A prompt is cached as a chain of blocks; a block is worth having only while all before it are resident. So the cache is
prefix-closed: a block leaves only when nothing hangs below it. Room is found in three bands:

1. blank blocks, never used or given back;
2. evict-first: what a release or a hint said cannot help any more, in the order in which it was said;
3. least recently used.

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
    # What was said of it last while nobody held it; of one that is held it means nothing.
    marked: bool = False
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
        # Taken, for what a sequence is computing, and not cached yet.
        self.private = 0
        self._blank = list(range(capacity - 1, -1, -1))
        self._by_hash: dict[BlockHash, _Node] = {}
        self._evict_first: dict[_Node, None] = {}
        self._lru: dict[_Node, None] = {}

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
            victim = next(iter(self._evict_first or self._lru), None)
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

    def release(self, lease: Lease, keep_blocks: int | None) -> None:
        """Gives a sequence's blocks back. Those past ``keep_blocks`` (``None``: none) are marked."""
        for at in range(len(lease.nodes) - 1, -1, -1):
            node = lease.nodes[at]
            node.pins -= 1
            if node.pins:
                continue
            self.pinned -= 1
            node.marked = keep_blocks is not None and at >= keep_blocks
            if node.marked and node.blockers == 0:
                self._enter_evict_first(node)
            else:
                self._lru[node] = None
        lease.nodes = []

    def mark(self, tail: Iterable[BlockHash]) -> None:
        """Marks resident blocks, deepest first. Blocks that are held take no mark: their release will decide."""
        for name in tail:
            node = self._by_hash.get(name)
            if node is None or node.pins or node.marked:
                continue
            node.marked = True
            if node.blockers == 0:
                del self._lru[node]
                self._enter_evict_first(node)

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
            assert not node.in_evict_first or (node.marked and not node.blockers)
            assert node.parent is None or self._by_hash.get(node.parent.hash) is node.parent, "prefix-closed"

    def order(self) -> list[BlockHash]:
        """What would be evicted, first to last, if nothing else happened."""
        return [node.hash for band in (self._evict_first, self._lru) for node in band]

    def _pin(self, node: _Node) -> None:
        node.pins += 1
        if node.pins > 1:
            return
        self.pinned += 1
        if node.in_evict_first:
            node.in_evict_first = False
            del self._evict_first[node]
            if node.parent is not None:
                node.parent.blockers += 1
        else:
            self._lru.pop(node, None)

    def _enter_evict_first(self, node: _Node) -> None:
        """And what was marked above it and waited for it."""
        entering: _Node | None = node
        while entering is not None:
            entering.in_evict_first = True
            self._evict_first[entering] = None
            entering = self._unblock(entering.parent)

    def _unblock(self, parent: _Node | None) -> _Node | None:
        """One child fewer in its way; returns it if it waited for that."""
        if parent is None:
            return None
        parent.blockers -= 1
        if parent.blockers or not parent.marked or parent.pins:
            return None
        del self._lru[parent]
        return parent

    def _drop(self, node: _Node) -> None:
        band = self._evict_first if node.in_evict_first else self._lru
        del band[node]
        del self._by_hash[node.hash]
        self._blank.append(node.block)
        self.removed += 1
        parent = node.parent
        if parent is None:
            return
        parent.children -= 1
        if not node.in_evict_first and (waited := self._unblock(parent)) is not None:
            self._enter_evict_first(waited)
