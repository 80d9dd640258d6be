"""What the settable budget does to SGLang's own radix cache, the Python core of its unified tree, without a server."""

from array import array
from types import SimpleNamespace

import pytest

pytest.importorskip("sglang.srt.plugins.hook_registry", reason="SGLang is not here: run scripts/engines sglang")

import tailroute_sglang
import torch
from sglang.srt.managers.io_struct import SetInternalStateReq
from sglang.srt.managers.scheduler_components.internal_state import SchedulerInternalStateController
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.plugins.hook_registry import HookRegistry
from tailroute_sglang import register

TURN = 100


class Allocator:
    """Where a real one gives pages of memory back, this one counts them."""

    device = torch.device("cpu")
    page_size = 1

    def __init__(self):
        self.freed = 0

    def free_segment(self, indices, start_pos):
        self.freed += len(indices)


@pytest.fixture
def cache(monkeypatch):
    """A cache under T-LRU as it is started: of L tokens, L + 10 - 60 are kept."""
    monkeypatch.setenv("SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND", "python")
    register()
    HookRegistry.apply_hooks()
    return UnifiedRadixCache(
        CacheInitParams(
            disable=False,
            req_to_token_pool=None,
            token_to_kv_pool_allocator=Allocator(),
            page_size=1,
            eviction_policy="tlru",
            eviction_policy_config={"threshold": 60, "next_prompt_estimate": 10},
            tree_components=(ComponentType.FULL,),
        )
    )


def key(conversation: int, turns: int) -> RadixKey:
    tokens = [conversation * 10_000 + at for at in range(turns * TURN)]
    return RadixKey(token_ids=array("q", tokens), extra_key=None)


def talk(cache, conversation: int, turns: int) -> None:
    """Turns of a conversation, one node of the tree each."""
    for turn in range(1, turns + 1):
        of = key(conversation, turn)
        cache.insert(InsertParams(key=of, value=torch.arange(len(of.token_ids), dtype=torch.int64)))


def resident(cache, conversation: int, turns: int) -> int:
    return cache.match_prefix(MatchPrefixParams(key=key(conversation, turns))).device_prefix_len


def set_budget(cache, threshold: int, estimate: int, **more: int) -> bool:
    controller = SchedulerInternalStateController(SimpleNamespace(tree_cache=cache), record_step_time=False)
    given = {"tlru_threshold": threshold, "tlru_next_prompt_estimate": estimate, **more}
    return controller.set_internal_state(SetInternalStateReq(server_args=given)).updated


def test_an_expired_budget_evicts_by_lru(cache, monkeypatch):
    now = 0.0
    monkeypatch.setattr(tailroute_sglang, "clock", lambda: now)
    talk(cache, 1, 3)
    talk(cache, 2, 3)
    assert set_budget(cache, 210, 10, tlru_ttl_ms=1000)
    cache.evict(EvictParams(num_tokens=100))
    now = 1.0
    cache.evict(EvictParams(num_tokens=200))
    # One turn of the older went by the budget, and its other two by LRU.
    assert (resident(cache, 1, 3), resident(cache, 2, 3)) == (0, 300)


@pytest.mark.parametrize(
    ("threshold", "left"),
    [
        # As started, 250 of 300 tokens are kept: no whole node is free, and the older conversation goes, from its end.
        (None, (0, 300)),
        # 300 + 10 - 210 = 100 are kept of each: their ends go first, the older one's before the younger one's.
        (210, (100, 200)),
    ],
)
def test_what_is_evicted_follows_the_budget_of_now(cache, threshold, left):
    talk(cache, 1, 3)
    talk(cache, 2, 3)
    if threshold is not None:
        assert set_budget(cache, threshold, 10)
    cache.evict(EvictParams(num_tokens=300))
    assert (resident(cache, 1, 3), resident(cache, 2, 3)) == left
