"""The banded queue beside a naive twin, over random operations; and what its bands are for, one sentence each."""

import random

import pytest
from tailroute_vllm.bands import BandedFreeQueue
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock


def blocks(count: int) -> list[KVCacheBlock]:
    return [KVCacheBlock(at) for at in range(count)]


class Twin:
    """The same queue the slow way: three lists, and a parent for each block."""

    def __init__(self, count: int) -> None:
        self.blank, self.first, self.lru = list(range(count)), [], []
        self.cached, self.parent = set(), {}
        self.marked, self.pending = set(), set()

    def order(self) -> list[int]:
        return self.blank + self.first + self.lru

    def settle(self) -> None:
        """Marked blocks enter the band when nothing unmarked hangs below them; deepest first, as marks arrive."""
        moved = True
        while moved:
            moved = False
            for at in [at for at in self.lru if at in self.marked]:
                if not any(up == at and down not in self.first for down, up in self.parent.items()):
                    self.lru.remove(at)
                    self.first.append(at)
                    moved = True
                    break

    def pop(self) -> int:
        at = self.order()[0]
        for band in (self.blank, self.first, self.lru):
            if at in band:
                band.remove(at)
        self.cached.discard(at)
        self.marked.discard(at)
        self.pending.discard(at)
        self.parent = {down: up for down, up in self.parent.items() if at not in (down, up)}
        self.settle()
        return at

    def link(self, chain: list[int]) -> None:
        for up, down in zip(chain, chain[1:]):
            self.parent[down] = up

    def give_back(self, chain: list[int], keep: int) -> None:
        self.pending -= set(chain[:keep])
        self.pending |= set(chain[keep:])

    def free(self, ordered: list[int]) -> None:
        for at in ordered:
            if at not in self.cached:
                raise AssertionError("only cached ones")
            self.lru.append(at)
            if at in self.pending:
                self.pending.discard(at)
                self.marked.add(at)
            self.settle()

    def touch(self, at: int) -> None:
        for band in (self.blank, self.first, self.lru):
            if at in band:
                band.remove(at)
        self.marked.discard(at)
        self.pending.discard(at)

    def mark(self, at: int) -> None:
        if at in self.lru and at in self.cached:
            self.marked.add(at)
            self.settle()


class Pair:
    """Both queues under one set of requests, which hold chains of blocks and share beginnings."""

    def __init__(self, count: int) -> None:
        self.all = blocks(count)
        self.queue, self.twin = BandedFreeQueue(self.all), Twin(count)
        self.running: list[list[int]] = []
        # Each block with what it held.
        self.known: list[list[tuple[int, int]]] = []

    def check(self) -> None:
        assert [block.block_id for block in self.queue.get_all_free_blocks()] == self.twin.order()
        assert self.queue.evict_first_blocks == len(self.twin.first)
        self.queue.invariants()

    def begin(self, shared: list[tuple[int, int]], new: int) -> None:
        """Touches the beginning of a known chain, and grows from there."""
        chain = []
        for at in shared:
            at, content = at
            block = self.all[at]
            if self.queue.content(at) != content:
                break
            if block.ref_cnt == 0:
                self.queue.remove(block)
                self.twin.touch(at)
            block.ref_cnt += 1
            chain.append(at)
        new = min(new, self.queue.num_free_blocks)
        taken = self.queue.popleft_n(new)
        assert [block.block_id for block in taken] == [self.twin.pop() for _ in range(new)]
        for block in taken:
            block.reset_hash()
            block.set_block_hash(bytes([block.block_id]) * 8, 1)
            block.ref_cnt = 1
            self.twin.cached.add(block.block_id)
            chain.append(block.block_id)
        if chain:
            self.running.append(chain)

    def end(self, which: int, keep: int) -> None:
        chain = self.running.pop(which)
        self.queue.link([self.all[at] for at in chain])
        self.twin.link(chain)
        self.queue.release_as(chain[:keep], chain[keep:])
        self.twin.give_back(chain, keep)
        freed = []
        for at in reversed(chain):
            self.all[at].ref_cnt -= 1
            if self.all[at].ref_cnt == 0:
                freed.append(at)
        self.queue.append_n([self.all[at] for at in freed])
        self.twin.free(freed)
        self.known.append([(at, self.queue.content(at)) for at in chain])


@pytest.mark.parametrize("seed", range(60))
def test_the_queue_and_its_twin_agree_after_every_operation(seed):
    chance = random.Random(seed)
    pair = Pair(24)
    for _ in range(150):
        what = chance.random()
        if what < 0.45 and len(pair.running) < 3:
            known = chance.choice(pair.known) if pair.known and chance.random() < 0.7 else []
            pair.begin(known[: chance.randint(0, len(known))] if known else [], chance.randint(1, 6))
        elif what < 0.85 and pair.running:
            at = chance.randrange(len(pair.running))
            pair.end(at, chance.randint(0, len(pair.running[at])))
        elif pair.known:
            chain = chance.choice(pair.known)
            for at, content in reversed(chain[chance.randint(0, len(chain)) :]):
                if pair.queue.content(at) != content:
                    continue
                pair.queue.mark(pair.all[at])
                pair.twin.mark(at)
                pair.check()
        pair.check()


def cached(all_blocks: list[KVCacheBlock], queue: BandedFreeQueue, count: int) -> list[KVCacheBlock]:
    taken = queue.popleft_n(count)
    for block in taken:
        block.set_block_hash(bytes([block.block_id]) * 8, 1)
    queue.link(taken)
    return taken


def ids(found) -> list[int]:
    return [block.block_id for block in found]


def test_blank_comes_before_marked_and_marked_before_everything_else():
    all_blocks = blocks(6)
    queue = BandedFreeQueue(all_blocks)
    old, new = cached(all_blocks, queue, 2), cached(all_blocks, queue, 2)
    queue.append_n(old[::-1])
    queue.release_as((), ids(new))
    queue.append_n(new[::-1])
    assert ids(queue.popleft_n(6)) == [4, 5, 3, 2, 1, 0]
    assert (queue.evicted_free, queue.evicted_lru) == (2, 2)


def test_a_hit_clears_the_mark():
    all_blocks = blocks(4)
    queue = BandedFreeQueue(all_blocks)
    chain = cached(all_blocks, queue, 4)
    queue.release_as((), ids(chain))
    queue.append_n(chain[::-1])
    queue.remove(all_blocks[0])
    assert queue.evict_first_blocks == 3
    queue.append_n([all_blocks[0]])
    assert ids(queue.get_all_free_blocks()) == [3, 2, 1, 0]
    assert queue.evict_first_blocks == 3


def test_a_marked_block_waits_for_what_hangs_below_it():
    all_blocks = blocks(5)
    queue = BandedFreeQueue(all_blocks)
    trunk, branch, other = cached(all_blocks, queue, 1), cached(all_blocks, queue, 1), cached(all_blocks, queue, 1)
    queue.link(trunk + branch)
    queue.append_n(other)
    queue.append_n(branch)
    queue.release_as((), ids(trunk))
    queue.append_n(trunk)
    assert queue.evict_first_blocks == 0, "the branch is still worth something"
    queue.mark(branch[0])
    assert ids(queue.popleft_n(5)) == [3, 4, 1, 0, 2]


def test_a_waiting_block_is_next_when_the_last_one_below_it_is_evicted():
    all_blocks = blocks(3)
    queue = BandedFreeQueue(all_blocks)
    trunk, branch, other = cached(all_blocks, queue, 1), cached(all_blocks, queue, 1), cached(all_blocks, queue, 1)
    queue.link(trunk + branch)
    queue.append_n(branch)
    queue.release_as((), ids(trunk))
    queue.append_n(other)
    queue.append_n(trunk)
    assert ids(queue.popleft_n(2)) == [1, 0]


def test_after_a_reset_everything_is_blank_in_the_order_in_which_it_stood():
    all_blocks = blocks(4)
    queue = BandedFreeQueue(all_blocks)
    chain = cached(all_blocks, queue, 2)
    queue.release_as((), ids(chain[1:]))
    queue.append_n(chain[::-1])
    before = ids(queue.get_all_free_blocks())
    for block in all_blocks:
        block.reset_hash()
    queue.all_blank()
    queue.invariants()
    assert ids(queue.get_all_free_blocks()) == before
    assert queue.evict_first_blocks == 0


def test_a_queue_can_take_over_from_vllms_own():
    all_blocks = blocks(5)
    stock = FreeKVCacheBlockQueue(all_blocks)
    taken = stock.popleft_n(2)
    taken[0].set_block_hash(b"x" * 8, 1)
    stock.append_n([taken[0]])
    queue = BandedFreeQueue.adopt(stock, 5)
    assert ids(queue.get_all_free_blocks()) == [2, 3, 4, 0]
    queue.mark(all_blocks[0])
    queue.prepend_n([all_blocks[1]])
    assert ids(queue.popleft_n(5)) == [1, 2, 3, 4, 0]
    with pytest.raises(ValueError):
        queue.popleft()
