"""ξ as engines are told it: it follows the objective, the worker's cost and its queue."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from processes import MODEL, MS_PER_TOKEN, Router, http, until
from talk import ids

OBJECTIVE_MS = 2000.0
XI = OBJECTIVE_MS / MS_PER_TOKEN


@pytest.fixture(params=["vllm", "sglang"])
def told(request):
    """An engine, and how to ask it for its ξ."""
    if request.param == "vllm":
        engine = request.getfixturevalue("fresh")
        return engine, lambda: engine.metric("tailroute:objective_xi_tokens")
    engine = request.getfixturevalue("sglang")
    return engine, lambda: engine.budget()["tlru_threshold"]


def stream(url: str, prompt: list[int]) -> None:
    """A streamed completion, whose first token the router sees."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 2, "stream": True}
    http.post(f"{url}/v1/completions", json=body, timeout=120).raise_for_status()


def test_xi_follows_the_objective_the_cost_and_the_queue(told):
    engine, xi = told

    def comes_to(wanted: float) -> None:
        until(lambda: f"ξ of {wanted:.0f} tokens, it has {xi():.0f}", lambda: abs(xi() - wanted) < 1)

    with Router(f"objective-{engine.name}", [engine], objective_ms=OBJECTIVE_MS, rule="t-lru") as router:
        comes_to(XI)
        router.change(f"ttft_ms = {OBJECTIVE_MS}", f"ttft_ms = {OBJECTIVE_MS / 2}")
        comes_to(XI / 2)
        twice = {"alpha_ms_per_token": 2 * MS_PER_TOKEN, "reason": "half as fast"}
        http.put(f"{router.admin}/admin/v1/workers/{engine.name}/alpha", json=twice, timeout=30).raise_for_status()
        comes_to(XI / 4)
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda at: stream(router.url, ids(2000 + at, 1024)), range(16)))
        until(lambda: f"ξ below {XI / 4:.0f} tokens, it has {xi():.0f}", lambda: xi() < 0.9 * XI / 4)
        print(f"{engine.name}: ξ {XI:.0f}, {XI / 2:.0f}, {XI / 4:.0f}, and {xi():.0f} tokens with a queue")
