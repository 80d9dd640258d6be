"""The plugin on SGLang's own hook registry, state controller and eviction strategy."""

from types import SimpleNamespace

import pytest
import tailroute_sglang

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


@pytest.fixture
def now(monkeypatch):
    """The plugin's clock, in seconds."""
    now = [100.0]
    monkeypatch.setattr(tailroute_sglang, "clock", lambda: now[0])
    return now


def in_force(strategy) -> dict:
    output = SimpleNamespace(internal_state={})
    add_readback(output, controller(strategy), None)
    return output.internal_state["tailroute"]


def test_a_budget_that_is_not_set_again_in_time_is_lru(now):
    strategy = TLRUStrategy(threshold=100, next_prompt_estimate=50)
    tail = node(history=1000, cached=1000, key=200)
    given = {"tlru_ttl_ms": 1000, "tlru_threshold": 400, "tlru_epoch": 7}
    for _ in range(2):
        assert update(controller(strategy), **given)
        now[0] += 0.75
        assert strategy.get_priority(tail) == (-1, 7.0)
    assert in_force(strategy)["tlru_age_s"] == 0.75
    now[0] += 0.25
    assert strategy.get_priority(tail) == (0, 7.0)
    told = in_force(strategy)
    assert (told["tlru_threshold"], told["tlru_epoch"], told["tlru_age_s"], told["tlru_expired"]) == (0, 7, 1.0, True)
    assert update(controller(strategy), **given)
    assert strategy.get_priority(tail) == (-1, 7.0)
    assert not in_force(strategy)["tlru_expired"]


def test_a_budget_without_a_time_to_live_stays(now):
    strategy = TLRUStrategy(threshold=100, next_prompt_estimate=50)
    assert update(controller(strategy), tlru_threshold=400, tlru_ttl_ms=1000.0)
    assert update(controller(strategy), tlru_threshold=400)
    now[0] += 1e9
    assert strategy.get_priority(node(history=1000, cached=1000, key=200)) == (-1, 7.0)


def test_an_older_epoch_is_rejected_whole_also_after_the_newer_has_expired(now):
    strategy = TLRUStrategy(threshold=100, next_prompt_estimate=50)
    assert update(controller(strategy), tlru_threshold=400, tlru_epoch=7, tlru_ttl_ms=1000)
    assert not update(controller(strategy), tlru_threshold=500, tlru_epoch=6)
    assert (strategy.threshold, in_force(strategy)["tlru_epoch"]) == (400, 7)
    now[0] += 2
    assert not update(controller(strategy), tlru_threshold=500, tlru_epoch=6)
    assert update(controller(strategy), tlru_threshold=500, tlru_epoch=7)
    assert update(controller(strategy), tlru_threshold=600), "it has no epoch"
    assert (strategy.threshold, in_force(strategy)["tlru_epoch"]) == (600, 7)


@pytest.mark.parametrize("ttl_ms", [0, -1, float("nan"), float("inf")])
def test_a_time_to_live_that_is_none_is_rejected_whole(ttl_ms):
    strategy = TLRUStrategy(threshold=400, next_prompt_estimate=50)
    assert not update(controller(strategy), tlru_threshold=5, tlru_ttl_ms=ttl_ms)
    assert strategy.threshold == 400


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
        "tlru_ttl_settable": True,
        "tlru_threshold": 400,
        "tlru_next_prompt_estimate": 50,
        "tlru_epoch": None,
        "tlru_age_s": None,
        "tlru_expired": False,
    }
    output = SimpleNamespace(internal_state={})
    add_readback(output, controller(LRUStrategy()), None)
    assert output.internal_state == {}
