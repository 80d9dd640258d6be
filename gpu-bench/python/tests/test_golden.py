"""The cache evicts the blocks of tests/vectors/t_lru.json, in its order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tailroute_torch.serve.cache import PrefixCache

VECTORS = json.loads((Path(__file__).parents[3] / "tests" / "vectors" / "t_lru.json").read_text())
BLOCK = VECTORS["block_tokens"]


def chain(conversation: int, blocks: int) -> list[bytes]:
    return [f"{conversation} {at}".encode() for at in range(blocks)]


def named(block: bytes) -> list[int]:
    return [int(number) for number in block.split()]


@pytest.mark.parametrize("case", VECTORS["cases"])
def test_evictions_are_those_of_t_lru(case: dict[str, Any]) -> None:
    cache = PrefixCache(case["capacity_blocks"])
    cache.set_tail(case["xi_tokens"] - case["next_prompt_tokens"])
    for (conversation, blocks), evicted in zip(case["turns"], case["evicted"], strict=True):
        names, gone = chain(conversation, blocks), []
        lease = cache.acquire(names)
        for name in names[len(lease.nodes) :]:
            first, removed = cache.order()[:1], cache.removed
            block = cache.take()
            assert block is not None
            gone += first[: cache.removed - removed]
            cache.store(lease, name, block)
        assert [named(block) for block in gone] == evicted
        cache.release(lease, None, [BLOCK * (blocks - at) for at in range(blocks)])
        cache.check()
