"""What goes first, and what stays."""

from __future__ import annotations

import random

import pytest
from naive_cache import NaiveCache

from tailroute_torch.serve.cache import Lease, PrefixCache


def chain(name: str, length: int) -> list[bytes]:
    return [f"{name}{at}".encode() for at in range(length)]


def turn(cache: PrefixCache, names: list[bytes], keep: int | None = None) -> int:
    """A whole turn: what it finds is used, the rest is computed. Returns how many blocks it found."""
    lease = cache.acquire(names)
    found = len(lease.nodes)
    compute(cache, lease, names[found:])
    cache.release(lease, keep)
    cache.check()
    return found


def compute(cache: PrefixCache, lease: Lease, names: list[bytes]) -> None:
    for name in names:
        block = cache.take()
        assert block is not None
        cache.store(lease, name, block)


def test_the_least_recently_used_goes_first_and_from_its_end() -> None:
    cache = PrefixCache(8)
    turn(cache, chain("a", 4))
    turn(cache, chain("b", 4))
    assert turn(cache, chain("c", 2)) == 0
    assert cache.resident(chain("a", 4)) == 2
    assert cache.resident(chain("b", 4)) == 4


def test_what_a_release_gave_up_goes_before_what_is_older() -> None:
    cache = PrefixCache(8)
    turn(cache, chain("a", 4))
    turn(cache, chain("b", 4), keep=1)
    turn(cache, chain("c", 3))
    assert (cache.resident(chain("a", 4)), cache.resident(chain("b", 4))) == (4, 1)


def test_blank_blocks_go_before_marked_ones() -> None:
    cache = PrefixCache(8)
    turn(cache, chain("a", 4), keep=0)
    turn(cache, chain("b", 4))
    assert cache.resident(chain("a", 4)) == 4


def test_a_hit_clears_the_mark() -> None:
    cache = PrefixCache(8)
    turn(cache, chain("a", 4), keep=0)
    turn(cache, chain("b", 4))
    assert turn(cache, chain("a", 4)) == 4
    assert cache.evict_first == 0
    turn(cache, chain("c", 2))
    assert (cache.resident(chain("a", 4)), cache.resident(chain("b", 4))) == (4, 2)


def test_a_marked_block_waits_for_what_hangs_below_it() -> None:
    cache = PrefixCache(8)
    shared = chain("a", 2)
    turn(cache, [*shared, b"x"])
    turn(cache, [*shared, b"y"])
    cache.mark([b"y", *reversed(shared)])
    assert cache.evict_first == 1, "the shared ones wait for x"
    cache.mark([b"x"])
    assert cache.order() == [b"y", b"x", b"a1", b"a0"]
    cache.check()


def test_what_is_held_is_neither_marked_nor_evicted() -> None:
    cache = PrefixCache(4)
    held = cache.acquire([])
    compute(cache, held, chain("a", 4))
    cache.mark(chain("a", 4))
    assert (cache.evict_first, cache.take()) == (0, None)
    cache.release(held, None)
    assert cache.order() == [b"a3", b"a2", b"a1", b"a0"]


def test_what_two_computed_at_once_is_held_once() -> None:
    cache = PrefixCache(8)
    one, two = cache.acquire([]), cache.acquire([])
    compute(cache, one, chain("a", 2))
    block = cache.take()
    assert block is not None
    assert cache.store(two, b"a0", block) == one.blocks[0] != block
    cache.release(one, None)
    assert cache.pinned == 1
    cache.release(two, None)
    cache.check()


def test_a_new_tail_moves_the_ends_of_what_is_cached_and_back_where_they_were() -> None:
    cache = PrefixCache(8)
    for name in ("a", "b"):
        lease = cache.acquire([])
        compute(cache, lease, chain(name, 4))
        cache.release(lease, None, [40, 30, 20, 10])
    cache.mark([b"b3"])
    for tail, order in [
        (20.0, "a3 a2 b3 b2 a1 a0 b1 b0"),
        (30.0, "a3 a2 a1 b3 b2 b1 a0 b0"),
        (29.5, "a3 a2 b3 b2 a1 a0 b1 b0"),
        (0.0, "b3 a3 a2 a1 a0 b2 b1 b0"),
    ]:
        cache.set_tail(tail)
        cache.check()
        assert b" ".join(cache.order()).decode() == order
    assert cache.evict_first == 1, "what a hint has named stays"


@pytest.mark.parametrize("seed", range(20))
def test_it_agrees_with_its_naive_twin_whatever_happens(seed: int) -> None:
    rng = random.Random(seed)
    cache, naive = PrefixCache(12), NaiveCache(12)
    # Conversations that fork: each block's name says the whole way to it.
    texts = ["".join(rng.choice("ab") for _ in range(7)) for _ in range(8)]
    chains = [[text[: at + 1].encode() for at in range(rng.randrange(1, 8))] for text in texts]
    running: list[tuple[list[bytes], Lease, list[bytes]]] = []
    for _ in range(300):
        act = rng.random()
        if act < 0.4 and len(running) < 4:
            names = rng.choice(chains)
            held = naive.acquire(names)
            lease = cache.acquire(names)
            assert [node.hash for node in lease.nodes] == held
            running.append((names, lease, held))
        elif act < 0.7 and running:
            names, lease, held = rng.choice(running)
            if len(held) < len(names):
                block = cache.take()
                assert (block is not None) == naive.take()
                if block is not None:
                    cache.store(lease, names[len(held)], block)
                    naive.store(held, names[len(held)])
        elif act < 0.9 and running:
            names, lease, held = running.pop(rng.randrange(len(running)))
            keep = rng.choice([None, None, 0, 1, 3])
            distances = list(range(len(held), 0, -1)) if keep is None else None
            cache.release(lease, keep, distances)
            naive.release(held, keep, distances)
        elif act < 0.95:
            tail = rng.choice([0, 1, 2, 4, 9])
            cache.set_tail(tail)
            naive.set_tail(tail)
        else:
            names = rng.choice(chains)
            end = names[rng.randrange(len(names)) :][::-1]
            cache.mark(end)
            naive.mark(end)
        cache.check()
        assert set(cache._by_hash) == set(naive.entries)
        assert {node.hash for node in cache._evict_first} == {
            name for name, entry in naive.entries.items() if entry.first
        }
        assert cache.order() == naive.order()
