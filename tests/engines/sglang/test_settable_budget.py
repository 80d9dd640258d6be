"""The plugin on SGLang's own hook registry, state controller and eviction strategy."""

from types import SimpleNamespace

import pytest

pytest.importorskip("sglang.srt.plugins.hook_registry", reason="SGLang is not here: run scripts/engines sglang")

from sglang.srt.managers.io_struct import SetInternalStateReq
from sglang.srt.managers.scheduler_components.internal_state import SchedulerInternalStateController
from sglang.srt.mem_cache.evict_policy import LRUStrategy, TLRUStrategy
from sglang.srt.plugins.hook_registry import HookRegistry
from tailroute_sglang import add_readback, register


@pytest.fixture(scope="module", autouse=True)
def hooks():
    """As SGLang loads plugins: they register, then all hooks are applied."""
    register()
    HookRegistry.apply_hooks()


def controller(strategy) -> SchedulerInternalStateController:
    core = SimpleNamespace(eviction_strategy=strategy)
    scheduler = SimpleNamespace(tree_cache=SimpleNamespace(tree_core=core))
    return SchedulerInternalStateController(scheduler, record_step_time=False)


def update(of, **server_args) -> bool:
    return of.set_internal_state(SetInternalStateReq(server_args=server_args)).updated


def node(history: int, cached: int, key: int):
    return SimpleNamespace(
        _tlru_history_len=history, _tlru_cached_prefix_len=cached, key=range(key), last_access_time=7.0
    )


def test_the_budget_changes_and_with_it_what_goes_first():
    strategy = TLRUStrategy(threshold=100, next_prompt_estimate=50)
    tail = node(history=1000, cached=1000, key=200)
    assert strategy.get_priority(tail) == (0, 7.0), "1000 + 50 - 100 = 950 are kept"
    assert update(controller(strategy), tlru_threshold=400, tlru_next_prompt_estimate=50.0)
    assert strategy.get_priority(tail) == (-1, 7.0), "1000 + 50 - 400 = 650 are kept"
    assert (strategy.threshold, strategy.next_prompt_estimate) == (400, 50)


def test_the_gate_closes_where_nothing_is_free():
    strategy = TLRUStrategy(threshold=400, next_prompt_estimate=50)
    assert update(controller(strategy), tlru_threshold=0)
    assert strategy.get_priority(node(1000, 1000, 200)) == (0, 7.0)


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), 1 << 50])
def test_what_is_no_number_of_tokens_is_rejected_whole(value):
    strategy = TLRUStrategy(threshold=400, next_prompt_estimate=50)
    assert not update(controller(strategy), tlru_next_prompt_estimate=1, tlru_threshold=value)
    assert (strategy.threshold, strategy.next_prompt_estimate) == (400, 50)


def test_another_policy_or_the_rust_core_is_left_alone():
    for strategy in (LRUStrategy(), None):
        assert not update(controller(strategy), tlru_threshold=5)


def test_sglangs_own_keys_are_still_its_own():
    assert not update(controller(TLRUStrategy()), no_such_key=1)
    assert "pp_max_micro_batch_size" in controller(TLRUStrategy())._update_handlers()


def test_the_server_says_that_it_can_be_set():
    output = SimpleNamespace(internal_state={})
    add_readback(output, controller(TLRUStrategy(threshold=400, next_prompt_estimate=50)), None)
    assert output.internal_state["tailroute"] == {
        "tlru_settable": True,
        "tlru_threshold": 400,
        "tlru_next_prompt_estimate": 50,
    }
    output = SimpleNamespace(internal_state={})
    add_readback(output, controller(LRUStrategy()), None)
    assert output.internal_state == {}
