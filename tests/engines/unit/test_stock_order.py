"""While nobody gives a hint, every allocation is the one that stock vLLM makes."""

import random

import pytest
from conftest import BLOCK, Cache, text
from tailroute_vllm import install
from tailroute_vllm.bands import BandedFreeQueue
from tailroute_vllm.director import Objective
from vllm.v1.core.block_pool import FreeKVCacheBlockQueue
from vllm.v1.request import RequestStatus


def drive(cache: Cache, seed: int, steps: int, between=lambda: None) -> list:
    """A random trace of turns, forks, growth, preemption, aborts, deferred frees and resets; what was allocated."""
    chance = random.Random(seed)
    histories = [text(name, chance.randint(1, 8 * BLOCK)) for name in range(6)]
    running, deferred, seen = [], [], []
    for _ in range(steps):
        what = chance.random()
        if what < 0.35 and len(running) < 4:
            at = chance.randrange(len(histories))
            prompt = histories[at] + text(chance.randrange(10**6), chance.randint(1, 3 * BLOCK))
            if len(prompt) > 14 * BLOCK:
                prompt = text(chance.randrange(10**6), BLOCK)
            if chance.random() < 0.3:
                at = chance.randrange(len(histories))
            request = cache.begin(prompt, session=f"s{at}")
            seen.append(None if request is None else request.cached)
            if request is not None:
                running.append((at, request))
        elif what < 0.6 and running:
            _, request = chance.choice(running)
            seen.append(cache.grow(request, text(7, chance.randint(1, BLOCK))))
        elif what < 0.9 and running:
            at, request = running.pop(chance.randrange(len(running)))
            aborted = chance.random() < 0.2
            if not aborted:
                histories[at] = list(request.all_token_ids)
            status = RequestStatus.FINISHED_ABORTED if aborted else RequestStatus.FINISHED_STOPPED
            deferred += [cache.end(request, status, deferred=chance.random() < 0.2)]
        elif what < 0.94 and running:
            # A preempted request gives its blocks back and is not over.
            _, request = running.pop(chance.randrange(len(running)))
            request.status = RequestStatus.PREEMPTED
            cache.manager.free(request)
        elif what < 0.97:
            while deferred:
                cache.pool.free_blocks(reversed(deferred.pop()))
        elif what < 0.98:
            cached = [block.block_id for block in cache.pool.blocks if block.block_hash]
            cache.manager.evict_blocks(set(chance.sample(cached, min(3, len(cached)))))
        elif not running:
            while deferred:
                cache.pool.free_blocks(reversed(deferred.pop()))
            seen.append(cache.manager.reset_prefix_cache())
        between()
        seen.append([cache.manager.get_block_ids(request.request_id) for _, request in running])
        seen.append([block.block_id for block in cache.queue.get_all_free_blocks()])
        if isinstance(cache.queue, BandedFreeQueue):
            cache.queue.invariants()
    return seen


@pytest.mark.parametrize("seed", range(20))
def test_every_allocation_is_stock_while_no_hint_was_given(seed):
    stock = Cache(41)
    assert type(stock.queue) is FreeKVCacheBlockQueue
    expected = drive(stock, seed, 400)
    install.install()
    try:
        banded = Cache(41)
        assert type(banded.queue) is BandedFreeQueue
        assert drive(banded, seed, 400) == expected
        assert banded.queue.evicted_free == 0
        assert banded.director is not None, "it was switched off by an error"
    finally:
        install.uninstall()


def test_a_trace_reaches_what_it_is_meant_to_reach(cache):
    lru = sum(_evictions(cache(40), seed) for seed in range(5))
    assert lru > 200


def _evictions(cache: Cache, seed: int) -> int:
    drive(cache, seed, 400)
    return cache.queue.evicted_lru


@pytest.mark.parametrize("seed", range(5))
def test_an_objective_that_came_and_went_changes_nothing(seed):
    stock = drive(Cache(41), seed, 400)
    install.install()
    try:
        banded, marked = Cache(41), 0

        def come_and_go():
            nonlocal marked
            for xi in (4.0 * BLOCK, 2.5 * BLOCK, 100.0 * BLOCK, 0.0):
                banded.director.set_objective(Objective(xi, next_prompt_tokens=0.0))
                banded.queue.invariants()
                marked += banded.queue.evict_first_blocks

        assert drive(banded, seed, 400, come_and_go) == stock
        assert marked > 1000
    finally:
        install.uninstall()
