"""The banded queue beside a naive twin, over random operations; and what its bands are for, one sentence each."""

import random

import pytest
from tailroute_vllm.bands import BandedFreeQueue
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock


def blocks(count: int) -> list[KVCacheBlock]:
    return [KVCacheBlock(at) for at in range(count)]


class Twin:
    """The same queue the slow way: what is marked, what waits and the order of the bands, found anew each time."""

    def __init__(self, count: int) -> None:
        self.blank = list(range(count))
        # Free cached blocks, and those of them in the evict-first band.
        self.free, self.band = set(), set()
        self.cached, self.hinted = set(), set()
        self.parent, self.distance, self.tail = {}, {}, 0
        # When a block was given back, its place in the band, and when it came there.
        self.released, self.key, self.entered = {}, {}, {}
        self.clock = 0

    def order(self) -> list[int]:
        band = sorted(self.band, key=lambda at: (self.key[at], self.entered[at]))
        return self.blank + band + sorted(self.free - self.band, key=self.released.get)

    def now(self) -> int:
        self.clock += 1
        return self.clock

    def is_ready(self, at: int) -> bool:
        marked = at in self.hinted or 0 < self.distance.get(at, 0) <= self.tail
        return marked and at in self.free and all(down in self.band for down, up in self.parent.items() if up == at)

    def settle(self) -> None:
        """Marked blocks are in the band when nothing unmarked hangs below them."""
        while gone := {at for at in self.band if not self.is_ready(at)}:
            self.band -= gone
        for at in sorted(self.free, key=self.released.get):
            self.enter(at)

    def enter(self, at: int) -> None:
        if at in self.band or not self.is_ready(at):
            return
        own = self.now() if at in self.hinted else self.released[at]
        self.key[at], self.entered[at] = max(own, self.key.get(at, 0)), self.now()
        self.band.add(at)
        if at in self.parent:
            up = self.parent[at]
            self.key[up] = max(self.key[at], self.key.get(up, 0))
            self.enter(up)

    def pop(self) -> int:
        at = self.order()[0]
        if at in self.blank:
            self.blank.remove(at)
        for group in (self.free, self.band, self.cached, self.hinted):
            group.discard(at)
        for known in (self.distance, self.key):
            known.pop(at, None)
        self.parent = {down: up for down, up in self.parent.items() if at not in (down, up)}
        self.settle()
        return at

    def link(self, chain: list[int]) -> None:
        for up, down in zip(chain, chain[1:]):
            self.parent[down] = up

    def release_as(self, keep: list[int], evict_first: list[int]) -> None:
        self.hinted = (self.hinted - set(keep)) | set(evict_first)
        self.distance |= dict.fromkeys([*keep, *evict_first], 0)

    def release_by_objective(self, ids: list[int], distances: range) -> None:
        self.hinted -= set(ids)
        self.distance |= zip(ids, distances)

    def free_all(self, ordered: list[int]) -> None:
        assert self.cached.issuperset(ordered)
        for at in ordered:
            self.free.add(at)
            self.released[at] = self.now()
            self.settle()

    def touch(self, at: int) -> None:
        for group in (self.free, self.band, self.hinted):
            group.discard(at)
        self.distance[at] = 0
        self.settle()

    def mark(self, at: int) -> None:
        if at in self.free:
            self.hinted.add(at)
            self.settle()

    def set_tail(self, tokens: int) -> None:
        self.tail = tokens
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
        assert self.queue.evict_first_blocks == len(self.twin.band)
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

    def end(self, which: int, keep: int | None) -> None:
        """Keeps so many blocks, or what the objective says, of tokens that are one block each."""
        chain = self.running.pop(which)
        self.queue.link([self.all[at] for at in chain])
        self.twin.link(chain)
        for queue in (self.queue, self.twin):
            if keep is None:
                queue.release_by_objective(chain, range(len(chain), 0, -1))
            else:
                queue.release_as(chain[:keep], chain[keep:])
        freed = []
        for at in reversed(chain):
            self.all[at].ref_cnt -= 1
            if self.all[at].ref_cnt == 0:
                freed.append(at)
        self.queue.append_n([self.all[at] for at in freed])
        self.twin.free_all(freed)
        self.known.append([(at, self.queue.content(at)) for at in chain])

    def mark(self, chain: list[tuple[int, int]]) -> None:
        for at, content in reversed(chain):
            if self.queue.content(at) == content:
                self.queue.mark(self.all[at])
                self.twin.mark(at)
                self.check()

    def set_tail(self, tokens: int) -> None:
        self.queue.set_tail(tokens)
        self.twin.set_tail(tokens)


@pytest.mark.parametrize("seed", range(60))
def test_the_queue_and_its_twin_agree_after_every_operation(seed):
    chance = random.Random(seed)
    pair = Pair(24)
    for _ in range(150):
        what = chance.random()
        if what < 0.4 and len(pair.running) < 3:
            known = chance.choice(pair.known) if pair.known and chance.random() < 0.7 else []
            pair.begin(known[: chance.randint(0, len(known))] if known else [], chance.randint(1, 6))
        elif what < 0.75 and pair.running:
            at = chance.randrange(len(pair.running))
            pair.end(at, chance.randint(0, len(pair.running[at])) if chance.random() < 0.5 else None)
        elif what < 0.85:
            pair.set_tail(chance.choice([0, 0, 1, 2, 4, 8, 20]))
        elif pair.known:
            chain = chance.choice(pair.known)
            pair.mark(chain[chance.randint(0, len(chain)) :])
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


def test_a_new_tail_moves_the_ends_of_what_is_cached_and_back_where_they_were():
    all_blocks = blocks(8)
    queue = BandedFreeQueue(all_blocks)
    for _ in range(2):
        chain = cached(all_blocks, queue, 4)
        queue.release_by_objective(ids(chain), [40, 30, 20, 10])
        queue.append_n(chain[::-1])
    for tail, order in [
        (20, [3, 2, 7, 6, 1, 0, 5, 4]),
        (30, [3, 2, 1, 7, 6, 5, 0, 4]),
        (29.5, [3, 2, 7, 6, 1, 0, 5, 4]),
        (99, [3, 2, 1, 0, 7, 6, 5, 4]),
        (0, [3, 2, 1, 0, 7, 6, 5, 4]),
    ]:
        queue.set_tail(tail)
        queue.invariants()
        assert ids(queue.get_all_free_blocks()) == order
    assert queue.evict_first_blocks == 0


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
    queue = BandedFreeQueue.adopt(stock, all_blocks)
    assert ids(queue.get_all_free_blocks()) == [2, 3, 4, 0]
    queue.mark(all_blocks[0])
    queue.prepend_n([all_blocks[1]])
    assert ids(queue.popleft_n(5)) == [1, 2, 3, 4, 0]
    with pytest.raises(ValueError):
        queue.popleft()
