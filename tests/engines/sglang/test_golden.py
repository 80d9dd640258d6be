"""SGLang's own radix cache with the plugin evicts the blocks of tests/vectors/t_lru.json, in its order."""

import json
from array import array
from pathlib import Path

import pytest
import torch
from test_radix_cache import EvictParams, InsertParams, MatchPrefixParams, RadixKey, cache, set_budget

__all__ = ["cache"]

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "t_lru.json").read_text())
BLOCK = VECTORS["block_tokens"]
SPACING = 1000


def tokens(conversation: int, blocks: int) -> list[int]:
    """A conversation's tokens, which also say where they are stored."""
    return [(conversation * SPACING + at // BLOCK) * BLOCK + at % BLOCK for at in range(blocks * BLOCK)]


def key(conversation: int, blocks: int) -> RadixKey:
    return RadixKey(token_ids=array("q", tokens(conversation, blocks)), extra_key=None)


@pytest.mark.parametrize("case", VECTORS["cases"])
def test_evictions_are_those_of_t_lru(cache, case, monkeypatch):
    gone, used = [], 0

    def freed(indices, start_pos):
        at = int(indices[0]) // BLOCK
        gone.append([at // SPACING, at % SPACING])

    monkeypatch.setattr(cache.token_to_kv_pool_allocator, "free_segment", freed)
    assert set_budget(cache, case["xi_tokens"], case["next_prompt_tokens"])
    for (conversation, blocks), evicted in zip(case["turns"], case["evicted"], strict=True):
        found = cache.match_prefix(MatchPrefixParams(key=key(conversation, blocks)))
        held = found.device_prefix_len // BLOCK
        lock = cache.inc_lock_ref(found.last_device_node)
        gone.clear()
        while used + blocks - held > case["capacity_blocks"]:
            cache.evict(EvictParams(num_tokens=BLOCK))
            used -= 1
        assert gone == evicted
        # One node for each block.
        for more in range(held + 1, blocks + 1):
            slots = torch.tensor(tokens(conversation, more), dtype=torch.int64)
            cache.insert(InsertParams(key=key(conversation, more), value=slots))
        used += blocks - held
        cache.dec_lock_ref(found.last_device_node, lock.to_dec_params())
