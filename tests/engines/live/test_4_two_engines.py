"""An engine with hints against a stock one, and the KV connector that patches nothing."""

import json

import pytest
from processes import MS_PER_TOKEN, Engine, Router, http, prefill_ms
from talk import complete, ids

A, B, C = 1024, 1024, 2048


def older_keeps(engine: Engine, **settings) -> int:
    """Cached tokens of the older conversation's next turn, where a younger one is over, and everything through one router."""
    engine.reset_cache()
    with Router(f"one-{engine.name}", [engine], **settings) as router:
        for at, tokens in enumerate((A, B, C)):
            complete(router.url, ids(90 + at, tokens), f"{at}", last=at == 1)
        return complete(router.url, ids(90, A) + ids(99, 8), "0").cached


@pytest.fixture(scope="module")
def stock():
    started = Engine("vllm-stock", plugin=False, times=False)
    yield started
    started.stop()


def test_a_conversation_that_is_over_goes_before_an_older_one_where_hints_are_taken(stock, fresh):
    by_lru, by_hints = older_keeps(stock), older_keeps(fresh)
    print(f"cached tokens of the older conversation: LRU {by_lru}, with hints {by_hints}")
    # C's 64 blocks take all 35 blank ones and 29 of the others: under LRU all of those are A's, else they are B's.
    assert by_hints == A
    assert by_lru == 96


def test_a_stock_engine_is_told_nothing(stock):
    assert http.get(f"{stock.url}/v1/tailroute", timeout=30).status_code == 404
    assert "tailroute" not in http.get(f"{stock.url}/metrics", timeout=30).text
    assert "tailroute: three-band" not in stock.process.log.read_text()


def test_what_answers_do_not_tell_is_learned_from_vllms_counters(stock):
    answers = "tailroute_worker_cost_answers_total"
    prefills = "vllm:request_prefill_time_seconds_sum"
    with Router("counters", [stock], learn_costs=True) as router:
        before = stock.metric(prefills)
        asked = []
        while router.metric(answers, told="counters") < 12:
            assert len(asked) < 300, f"{len(asked)} answers in one piece, and too little learned: {router.process.log}"
            asked.append(100 + 250 * (len(asked) % 7))
            assert complete(router.url, ids(800 + len(asked), asked[-1]), f"cost-{len(asked)}").cached == 0
        took_ms = 1e3 * (stock.metric(prefills) - before)
        cost = router.cost()
        believed_ms = sum(prefill_ms(cost, tokens) for tokens in asked)
        assert router.metric(answers, told="engine") == router.metric(answers, told="clean") == 0
    print(f"{len(asked)} prefills took {took_ms:.0f} ms by vLLM's metrics, {believed_ms:.0f} ms by {cost}")
    assert took_ms / 2 < believed_ms < took_ms * 2
    assert cost["alpha_ms_per_token"] != MS_PER_TOKEN


def test_the_connector_takes_hints_within_requests_without_patching(stock):
    stock.stop()
    config = {
        "kv_connector": "TailrouteConnector",
        "kv_role": "kv_both",
        "kv_connector_module_path": "tailroute_vllm.connector",
    }
    engine = Engine("vllm-connector", plugin=False, more=["--kv-transfer-config", json.dumps(config)])
    try:
        assert older_keeps(engine, dialect="vllm_xargs") == A
        assert http.get(f"{engine.url}/v1/tailroute", timeout=30).status_code == 404
    finally:
        engine.stop()
