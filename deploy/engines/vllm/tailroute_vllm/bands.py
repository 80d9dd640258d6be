"""The free-block queue of a vLLM block pool in three bands: blank, then evict-first, then least recently used.

vLLM keeps every block that no request uses in one doubly linked list and allocates from its front. Blocks without
content are put in front, cached ones at the back, so the list reads: blank blocks, then cached ones by last use. This
queue puts two dividers into that list::

    head - blank ... - D1 - evict-first ... - D2 - least recently used ... - tail

A marked block enters just before D2, so marked blocks go in the order in which they were marked, after every blank
block and before every unmarked one. While nothing is marked the middle band is empty and the order is vLLM's own.
(Putting marked blocks in front of the whole list, which needs no dividers, is wrong: it evicts cached data while
never-used blocks remain.)

A block is worth having only while all blocks before it in its conversation are cached. So a marked block that still
has an unmarked block below it (conversations fork and share their beginnings) waits in the last band, and moves when
the last such block is marked or gone. ``_blockers`` counts them, which makes that wait O(1) per block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock

NONE = -1


class BandedFreeQueue(FreeKVCacheBlockQueue):
    """vLLM's free-block queue with an evict-first band. Blocks are named by their ids, 0 to ``len(blocks) - 1``."""

    def __init__(self, blocks: list[KVCacheBlock], num_blocks: int | None = None) -> None:
        super().__init__(blocks)
        self._to_evict_first = KVCacheBlock(block_id=NONE)
        self._to_lru = KVCacheBlock(block_id=NONE)
        tail = self.fake_free_list_tail
        _insert_before(self._to_evict_first, tail)
        _insert_before(self._to_lru, tail)
        total = len(blocks) if num_blocks is None else num_blocks
        # The block before it in its conversation, and that block's content when the link was made.
        self._parent = [NONE] * total
        self._parent_content = [0] * total
        # Counts what a block has held, so that a name outlives its content harmlessly.
        self._content = [0] * total
        # Blocks below it that are not in the evict-first band.
        self._blockers = [0] * total
        self._in_band = bytearray(total)
        # In the last band only because something below it is unmarked.
        self._waits = bytearray(total)
        # Blocks in use whose last user said that they may go first.
        self._marked_in_use: set[int] = set()
        self._block: dict[int, KVCacheBlock] = {}
        # Blocks in the evict-first band.
        self.evict_first_blocks = 0
        # Cached blocks given up, from each band.
        self.evicted_free = 0
        self.evicted_lru = 0

    @classmethod
    def adopt(cls, queue: FreeKVCacheBlockQueue, num_blocks: int) -> BandedFreeQueue:
        """A banded queue of another queue's blocks, in its order. The other queue must not be used any more."""
        blocks = queue.get_all_free_blocks()
        adopted = cls(blocks, num_blocks)
        first_cached = next((block for block in blocks if block.block_hash is not None), None)
        if first_cached is not None:
            for divider in (adopted._to_evict_first, adopted._to_lru):
                _unlink(divider)
                _insert_before(divider, first_cached)
        return adopted

    # What vLLM calls.

    def popleft(self) -> KVCacheBlock:
        if self.num_free_blocks == 0:
            raise ValueError("No free blocks available")
        return self.popleft_n(1)[0]

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        assert self.num_free_blocks >= n
        self.num_free_blocks -= n
        # One at a time: giving up a block can move the one above it to the evict-first band, and then that is next.
        return [self._take() for _ in range(n)]

    def remove(self, block: KVCacheBlock) -> None:
        """A hit: the block is in use again, so whatever was said about it before is void."""
        super().remove(block)
        at = block.block_id
        self._stop_waiting(at)
        self._marked_in_use.discard(at)
        if self._in_band[at]:
            self._in_band[at] = 0
            self.evict_first_blocks -= 1
            parent = self._live_parent(at)
            if parent != NONE:
                self._blockers[parent] += 1

    def append(self, block: KVCacheBlock) -> None:
        self.append_n([block])

    def append_n(self, blocks: list[KVCacheBlock]) -> None:
        """Gives cached blocks back, deepest first; each goes where its last user said."""
        if not self._marked_in_use:
            super().append_n(blocks)
            return
        for block in blocks:
            at = block.block_id
            if at not in self._marked_in_use:
                super().append_n([block])
                continue
            self._marked_in_use.discard(at)
            self.num_free_blocks += 1
            if self._blockers[at] == 0:
                self._enter_band(block)
            else:
                self._wait(block)
                _insert_before(block, self.fake_free_list_tail)

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

    # What hints do.

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
        self._marked_in_use.difference_update(keep)
        self._marked_in_use.update(evict_first)

    def content(self, block_id: int) -> int:
        """Names what a block holds now: it changes when the block is given to something else."""
        return self._content[block_id]

    def mark(self, block: KVCacheBlock) -> bool:
        """Moves a free cached block to the evict-first band, now or when what hangs below it is gone too."""
        at = block.block_id
        if block.ref_cnt > 0 or block.block_hash is None or block.is_null or self._in_band[at] or self._waits[at]:
            return False
        if self._blockers[at] == 0:
            _unlink(block)
            self._enter_band(block)
        else:
            self._wait(block)
        return True

    def protect(self, block: KVCacheBlock) -> bool:
        """Moves a free cached block to the fresh end of the last band and clears its mark."""
        if block.ref_cnt > 0 or block.block_hash is None or block.is_null:
            return False
        self.remove(block)
        super().append_n([block])
        return True

    def all_blank(self) -> None:
        """Everything was forgotten: every free block is blank, in the order in which it stands."""
        for divider in (self._to_evict_first, self._to_lru):
            _unlink(divider)
            _insert_before(divider, self.fake_free_list_tail)
        total = len(self._parent)
        self._parent = [NONE] * total
        self._content = [content + 1 for content in self._content]
        self._blockers = [0] * total
        self._in_band = bytearray(total)
        self._waits = bytearray(total)
        self._marked_in_use.clear()
        self._block.clear()
        self.evict_first_blocks = 0

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
        waiting = {at for at in range(len(self._waits)) if self._waits[at]}
        assert waiting <= set(last) and waiting == set(self._block)
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
            if self._in_band[at]:
                self.evicted_free += 1
            else:
                self.evicted_lru += 1
        self._forget(at)
        return block

    def _live_parent(self, at: int) -> int:
        parent = self._parent[at]
        if parent != NONE and self._parent_content[at] == self._content[parent]:
            return parent
        return NONE

    def _enter_band(self, block: KVCacheBlock) -> None:
        """Puts an unlinked block at the end of the evict-first band, and what waited for it behind it."""
        while True:
            _insert_before(block, self._to_lru)
            self._in_band[block.block_id] = 1
            self.evict_first_blocks += 1
            above = self._unblock(self._live_parent(block.block_id))
            if above is None:
                return
            _unlink(above)
            block = above

    def _wait(self, block: KVCacheBlock) -> None:
        self._waits[block.block_id] = 1
        self._block[block.block_id] = block

    def _stop_waiting(self, at: int) -> None:
        if self._waits[at]:
            self._waits[at] = 0
            del self._block[at]

    def _unblock(self, parent: int) -> KVCacheBlock | None:
        """One block less hangs below ``parent``. Returns it if that was what it waited for."""
        if parent == NONE:
            return None
        self._blockers[parent] -= 1
        if self._blockers[parent] == 0 and self._waits[parent]:
            self._waits[parent] = 0
            return self._block.pop(parent)
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
        self._stop_waiting(at)
        self._marked_in_use.discard(at)
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
