"""The free-block queue of a vLLM block pool in three bands: blank, then evict-first, then least recently used.

vLLM keeps every block that no request uses in one doubly linked list and allocates from its front. Blocks without
content are put in front, cached ones at the back, so the list reads: blank blocks, then cached ones by last use. This
queue puts two dividers into that list::

    head - blank ... - D1 - evict-first ... - D2 - least recently used ... - tail

A block is marked by a hint, or by the objective: if it begins at most ``tail`` tokens before the end of its
conversation. Each block remembers that distance from its last release on, so a new tail is applied to what is cached
already: the blocks that it concerns, and no others, move between the two bands. While nothing is marked the middle band
is empty and the order is vLLM's own. (Putting marked blocks in front of the whole list, which needs no dividers, is
wrong: it evicts cached data while never-used blocks remain.)

The last band is in order of release. The evict-first band has blocks marked by the objective in order of release, and
those marked by hints where they were when the hint came; a conversation goes from its end in both.

A block is worth having only while all blocks before it in its conversation are cached. So a marked block that still
has an unmarked block below it (conversations fork and share their beginnings) waits in the last band, and moves when
the last such block is marked or gone. ``_blockers`` counts them, which makes that wait O(1) per block.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock

NONE = -1


class BandedFreeQueue(FreeKVCacheBlockQueue):
    """vLLM's free-block queue with an evict-first band. Blocks are named by their ids, 0 to ``len(blocks) - 1``."""

    def __init__(self, free: list[KVCacheBlock], blocks: Sequence[KVCacheBlock] | None = None) -> None:
        super().__init__(free)
        self._to_evict_first = KVCacheBlock(block_id=NONE)
        self._to_lru = KVCacheBlock(block_id=NONE)
        tail = self.fake_free_list_tail
        _insert_before(self._to_evict_first, tail)
        _insert_before(self._to_lru, tail)
        # All blocks of the pool by their ids, free or not.
        self._block = list(free if blocks is None else blocks)
        # Counts what a block has held, so that a name outlives its content harmlessly.
        self._content = [0] * len(self._block)
        self._forget_all()
        # Counts releases and marks by hints.
        self._stamp = 0
        # The stamp of a block's last release.
        self._released = [0] * len(self._block)
        # Tokens before the end of a conversation that go first.
        self._tail = 0.0
        # Called before blocks are given up, while it is set.
        self.before_eviction: Callable[[], None] | None = None
        # Cached blocks given up: marked by a hint, by the objective alone, and from the last band.
        self.evicted_by_hint = 0
        self.evicted_by_xi = 0
        self.evicted_lru = 0

    def _forget_all(self) -> None:
        total = len(self._block)
        # The block before it in its conversation, and that block's content when the link was made.
        self._parent = [NONE] * total
        self._parent_content = [0] * total
        # Blocks below it that are not in the evict-first band.
        self._blockers = [0] * total
        self._in_band = bytearray(total)
        # Marked, and in the last band because something below it is unmarked.
        self._waits = bytearray(total)
        # Marked by a hint; of a block in use: its last user said that it may go first.
        self._by_hint = bytearray(total)
        # Tokens from a block's beginning to the end of its conversation; 0: the objective does not apply to it.
        self._distance = array("q", bytes(8 * total))
        # The evict-first band is in this order. A block stands behind those below it, so its key is at least theirs.
        self._key = [0] * total
        # Blocks in the evict-first band.
        self.evict_first_blocks = 0

    @classmethod
    def adopt(cls, queue: FreeKVCacheBlockQueue, blocks: Sequence[KVCacheBlock]) -> BandedFreeQueue:
        """A banded queue of another queue's free blocks, in its order. The other queue must not be used any more."""
        free = queue.get_all_free_blocks()
        adopted = cls(free, blocks)
        first_cached = next((at for at, block in enumerate(free) if block.block_hash is not None), len(free))
        for block in free[first_cached:]:
            _unlink(block)
        adopted.num_free_blocks = first_cached
        adopted.append_n(free[first_cached:])
        return adopted

    @property
    def evicted_free(self) -> int:
        """Cached blocks given up from the evict-first band."""
        return self.evicted_by_hint + self.evicted_by_xi

    # What vLLM calls.

    def popleft(self) -> KVCacheBlock:
        if self.num_free_blocks == 0:
            raise ValueError("No free blocks available")
        return self.popleft_n(1)[0]

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        assert self.num_free_blocks >= n
        if self.before_eviction is not None:
            self.before_eviction()
        self.num_free_blocks -= n
        # One at a time: giving up a block can move the one above it to the evict-first band, and then that is next.
        return [self._take() for _ in range(n)]

    def remove(self, block: KVCacheBlock) -> None:
        """A hit: the block is in use again, so whatever was said about it before is void."""
        super().remove(block)
        at = block.block_id
        self._waits[at] = self._by_hint[at] = self._distance[at] = 0
        if self._in_band[at]:
            self._leave_band(at)

    def append(self, block: KVCacheBlock) -> None:
        self.append_n([block])

    def append_n(self, blocks: list[KVCacheBlock]) -> None:
        """Gives cached blocks back, deepest first; each goes where its last user and the objective say."""
        by_hint, distance, tail = self._by_hint, self._distance, self._tail
        for block in blocks:
            at = block.block_id
            self._stamp += 1
            self._released[at] = self._stamp
            if not (by_hint[at] or 0 < distance[at] <= tail):
                _insert_before(block, self.fake_free_list_tail)
            elif self._blockers[at] == 0:
                self._enter_band(block)
            else:
                self._waits[at] = 1
                _insert_before(block, self.fake_free_list_tail)
        self.num_free_blocks += len(blocks)

    def prepend_n(self, blocks: list[KVCacheBlock]) -> None:
        for block in blocks:
            self._forget(block.block_id)
        super().prepend_n(blocks)

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        return list(self.iter_blocks_after(None))

    def iter_blocks_after(self, cursor: KVCacheBlock | None) -> Iterator[KVCacheBlock]:
        block = (self.fake_free_list_head if cursor is None else cursor).next_free_block
        while block is not None and block is not self.fake_free_list_tail:
            if block.block_id != NONE:
                yield block
            block = block.next_free_block

    # What requests, hints and the objective say.

    def link(self, chain: Sequence[KVCacheBlock]) -> None:
        """Says that these blocks follow each other in a conversation. To be called while they are in use."""
        parent = NONE
        for block in chain:
            if block.is_null or block.block_hash is None:
                # Outside a window, or not full: what follows hangs on nothing that can be evicted before it.
                parent = NONE
                continue
            at = block.block_id
            if parent != NONE and (
                self._parent[at] != parent or self._parent_content[at] != self._content[parent]
            ):
                self._unlink_from_parent(at)
                self._parent[at] = parent
                self._parent_content[at] = self._content[parent]
                self._blockers[parent] += 1
            parent = at

    def release_as(self, keep: Iterable[int], evict_first: Iterable[int]) -> None:
        """What the request that gives these blocks back says about them. Others may use them still; the last decides."""
        for mark, ids in enumerate((keep, evict_first)):
            for at in ids:
                if at != NONE:
                    self._by_hint[at] = mark
                    self._distance[at] = 0

    def release_by_objective(self, ids: Iterable[int], distances: Iterable[int]) -> None:
        """The same of a request that says nothing: each block's tokens from its beginning to the conversation's end."""
        for at, tokens in zip(ids, distances, strict=True):
            if at != NONE:
                self._by_hint[at] = 0
                self._distance[at] = tokens

    def set_tail(self, tokens: float) -> None:
        """The objective lets those cached blocks go first that begin at most so many tokens before the end."""
        before, self._tail = self._tail, max(0.0, tokens)
        low, high = sorted((before, self._tail))
        distance = np.frombuffer(self._distance, np.int64)
        blocks = map(self._block.__getitem__, np.flatnonzero((distance > low) & (distance <= high)).tolist())
        changed = [block for block in blocks if block.prev_free_block is not None and not self._by_hint[block.block_id]]
        changed.sort(key=lambda block: self._released[block.block_id])
        if self._tail > before:
            self._mark_all(changed)
        else:
            self._unmark_all(changed)

    def content(self, block_id: int) -> int:
        """Names what a block holds now: it changes when the block is given to something else."""
        return self._content[block_id]

    def mark(self, block: KVCacheBlock) -> bool:
        """Moves a free cached block to the evict-first band, now or when what hangs below it is gone too."""
        at = block.block_id
        if block.ref_cnt > 0 or block.block_hash is None or block.is_null or self._by_hint[at]:
            return False
        self._by_hint[at] = 1
        if self._in_band[at]:
            return True
        if self._blockers[at] == 0:
            _unlink(block)
            self._enter_band(block)
        else:
            self._waits[at] = 1
        return True

    def protect(self, block: KVCacheBlock) -> bool:
        """Moves a free cached block to the fresh end of the last band and clears its mark."""
        if block.ref_cnt > 0 or block.block_hash is None or block.is_null:
            return False
        self.remove(block)
        self.append_n([block])
        return True

    def all_blank(self) -> None:
        """Everything was forgotten: every free block is blank, in the order in which it stands."""
        for divider in (self._to_evict_first, self._to_lru):
            _unlink(divider)
            _insert_before(divider, self.fake_free_list_tail)
        self._content = [content + 1 for content in self._content]
        self._forget_all()

    def invariants(self) -> None:
        """Raises AssertionError where the bands, the links and the counts do not agree."""
        blocks = self.get_all_free_blocks()
        assert len(blocks) == self.num_free_blocks
        between, last = [], []
        block, into = self._to_evict_first.next_free_block, between
        while block is not self.fake_free_list_tail:
            if block is self._to_lru:
                into = last
            else:
                into.append(block.block_id)
            assert block.next_free_block.prev_free_block is block
            block = block.next_free_block
        assert len(between) == self.evict_first_blocks == sum(self._in_band)
        assert all(self._in_band[at] for at in between)
        marked = {at for at in between + last if self._by_hint[at] or 0 < self._distance[at] <= self._tail}
        waiting = {at for at in range(len(self._waits)) if self._waits[at]}
        assert marked == waiting | set(between) and waiting <= set(last)
        keys, stamps = [self._key[at] for at in between], [self._released[at] for at in last]
        assert keys == sorted(keys) and stamps == sorted(stamps)
        blockers = [0] * len(self._blockers)
        for at in range(len(self._parent)):
            parent = self._live_parent(at)
            if parent != NONE and not self._in_band[at]:
                blockers[parent] += 1
        assert blockers == self._blockers
        assert all(blockers[at] == 0 for at in between)
        assert all(blockers[at] > 0 for at in waiting)

    # Within.

    def _take(self) -> KVCacheBlock:
        block = self.fake_free_list_head.next_free_block
        if block is self._to_evict_first:
            block = block.next_free_block
            if block is self._to_lru:
                block = block.next_free_block
        _unlink(block)
        block.prev_free_block = block.next_free_block = None
        at = block.block_id
        if block.block_hash is not None:
            if not self._in_band[at]:
                self.evicted_lru += 1
            elif self._by_hint[at]:
                self.evicted_by_hint += 1
            else:
                self.evicted_by_xi += 1
        self._forget(at)
        return block

    def _live_parent(self, at: int) -> int:
        parent = self._parent[at]
        if parent != NONE and self._parent_content[at] == self._content[parent]:
            return parent
        return NONE

    def _mark_all(self, blocks: list[KVCacheBlock]) -> None:
        """Of free blocks, in order of release, which the objective lets go first from now on."""
        near = self._to_evict_first
        for block in blocks:
            self._waits[block.block_id] = 1
        for block in blocks:
            at = block.block_id
            if self._waits[at] and self._blockers[at] == 0:
                self._waits[at] = 0
                _unlink(block)
                self._enter_band(block, near)
                # Unless a hint for a block below has sent it further back.
                near = block if self._key[at] == self._released[at] else near

    def _unmark_all(self, blocks: list[KVCacheBlock]) -> None:
        """Of free blocks, in order of release, which the objective let go first until now."""
        near = self.fake_free_list_tail
        for block in reversed(blocks):
            at = block.block_id
            self._waits[at] = 0
            if self._in_band[at]:
                _unlink(block)
                self._leave_band(at)
                near = self._return_to_lru(block, near)

    def _enter_band(self, block: KVCacheBlock, near: KVCacheBlock | None = None) -> None:
        """Puts an unlinked block into the evict-first band, and what waited for it behind it. ``near``: what stands
        before its place."""
        while True:
            at = block.block_id
            own = self._released[at]
            if self._by_hint[at]:
                self._stamp = own = self._stamp + 1
            key = self._key[at] = max(own, self._key[at])
            _insert_before(block, self._place_in_band(key, near or self._to_evict_first))
            self._in_band[at] = 1
            self.evict_first_blocks += 1
            parent = self._live_parent(at)
            if parent == NONE:
                return
            self._key[parent] = max(key, self._key[parent])
            above = self._unblock(parent)
            if above is None:
                return
            _unlink(above)
            block, near = above, block

    def _place_in_band(self, key: int, near: KVCacheBlock) -> KVCacheBlock:
        """What is to stand behind a block with that key."""
        last = self._to_lru.prev_free_block
        if last is self._to_evict_first or self._key[last.block_id] <= key:
            return self._to_lru
        block = near.next_free_block
        while self._key[block.block_id] <= key:
            block = block.next_free_block
        return block

    def _leave_band(self, at: int) -> None:
        """An unlinked block is not in the band any more, and marked ones above it wait for it again."""
        above = []
        while self._in_band[at]:
            self._in_band[at] = 0
            self.evict_first_blocks -= 1
            at = self._live_parent(at)
            if at == NONE:
                break
            self._blockers[at] += 1
            if self._in_band[at]:
                self._waits[at] = 1
                above.append(self._block[at])
        near = self.fake_free_list_tail
        for block in reversed(above):
            _unlink(block)
            near = self._return_to_lru(block, near)

    def _return_to_lru(self, block: KVCacheBlock, near: KVCacheBlock) -> KVCacheBlock:
        """Puts an unlinked block where its last release belongs, somewhere before ``near``. Returns the block."""
        released = self._released
        stamp = released[block.block_id]
        parent = self._live_parent(block.block_id)
        if parent != NONE and not self._in_band[parent] and released[parent] > stamp:
            # Where it is free too, it mostly stands just behind.
            above, tail = self._block[parent], self.fake_free_list_tail
            if above.prev_free_block is not None and (near is tail or released[parent] < released[near.block_id]):
                near = above
        while (before := near.prev_free_block) is not self._to_lru and released[before.block_id] > stamp:
            near = before
        _insert_before(block, near)
        return block

    def _unblock(self, parent: int) -> KVCacheBlock | None:
        """One block less hangs below ``parent``. Returns it if that was what it waited for."""
        self._blockers[parent] -= 1
        if self._blockers[parent] == 0 and self._waits[parent]:
            self._waits[parent] = 0
            return self._block[parent]
        return None

    def _unlink_from_parent(self, at: int) -> None:
        parent = self._live_parent(at)
        self._parent[at] = NONE
        if parent != NONE and not self._in_band[at]:
            above = self._unblock(parent)
            if above is not None:
                _unlink(above)
                self._enter_band(above)

    def _forget(self, at: int) -> None:
        """The block's content is gone."""
        if self._parent[at] != NONE:
            self._unlink_from_parent(at)
        if self._in_band[at]:
            self._in_band[at] = 0
            self.evict_first_blocks -= 1
        self._waits[at] = self._by_hint[at] = self._distance[at] = 0
        self._blockers[at] = 0
        self._content[at] += 1


def _unlink(block: KVCacheBlock) -> None:
    block.prev_free_block.next_free_block = block.next_free_block
    block.next_free_block.prev_free_block = block.prev_free_block


def _insert_before(block: KVCacheBlock, after: KVCacheBlock) -> None:
    before = after.prev_free_block
    before.next_free_block = block
    block.prev_free_block = before
    block.next_free_block = after
    after.prev_free_block = block
