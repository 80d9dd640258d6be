"""The HTTP side against an engine core that answers at once."""

import asyncio
import json

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from tailroute_vllm import install
from tailroute_vllm.director import EVICT_FIRST
from tailroute_vllm.endpoints import MAX_HINTS, TailrouteEndpoints


class Cores:
    """Two data-parallel ranks, each with a cache of its own."""

    def __init__(self, caches):
        self.caches = caches
        self.available, self.busy = True, False

    async def call_utility_all_async(self, method, message):
        assert method == install.UTILITY
        if not self.available:
            raise RuntimeError("dead")
        if self.busy:
            raise asyncio.TimeoutError
        return [install.answer(Core(cache), message) for cache in self.caches]


class Core:
    def __init__(self, cache):
        self.scheduler = type("Scheduler", (), {"kv_cache_manager": cache.manager})


class Client:
    engine_core = None


@pytest.fixture
def cores(cache):
    return Cores([cache(64), cache(64)])


@pytest.fixture
async def http(cores):
    app = FastAPI()

    @app.get("/metrics")
    def metrics():
        return PlainTextResponse("vllm:up 1\n")

    plugin = TailrouteEndpoints()
    plugin.attach_router(app)
    client = Client()
    client.engine_core = cores
    args = type("Args", (), {"served_model_name": ["tiny"], "model": "/m"})
    await plugin.init_state(client, app.state, args)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        yield client


pytestmark = pytest.mark.anyio


async def test_the_capability_document_says_what_is_understood(http):
    says = (await http.get("/v1/tailroute")).json()
    assert (says["dialect"], says["engine"], says["model"], says["block_size"]) == ("tailroute", "vllm", "tiny", 32)
    assert says["hints"] == ["trim", "ended", "protect"]
    assert (says["evict_first_header"], says["evict_first_xarg"]) == (None, EVICT_FIRST)
    assert (says["capacity_tokens"], says["data_parallel_ranks"]) == (2048, 2)


async def test_of_several_ranks_the_one_that_knows_speaks(http, cores):
    from conftest import text

    cores.caches[1].turn(text(1, 128), "s")
    hints = [
        {"kind": "trim", "session_id": "s", "keep_tokens": 64, "epoch": 1, "ttl_ms": 1e5},
        {"kind": "ended", "session_id": "nobody"},
        {"kind": "shred", "session_id": "s"},
    ]
    answer = await http.post("/v1/tailroute/hints", json={"hints": hints})
    assert answer.json() == {"applied": 1, "pending": 0, "expired": 0, "stale": 0, "unknown": 1, "rejected": 1}
    assert cores.caches[1].queue.evict_first_blocks == 2


async def test_an_objective_is_taken_unless_a_newer_one_holds(http):
    newer = {"xi_tokens": 60.0, "next_prompt_tokens": 10.0, "epoch": 3}
    assert (await http.put("/v1/tailroute/objective", json=newer)).json() == {"applied": True, "objective": newer}
    answer = await http.put("/v1/tailroute/objective", json={**newer, "epoch": 2})
    assert answer.json() == {"applied": False, "objective": newer}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "hints", b"{"),
        ("POST", "hints", b"[]"),
        ("POST", "hints", b'{"hints":{}}'),
        ("POST", "hints", json.dumps({"hints": [{}] * (MAX_HINTS + 1)}).encode()),
        ("PUT", "objective", b"{}"),
        ("PUT", "objective", b'{"xi_tokens":-1,"next_prompt_tokens":0}'),
        ("PUT", "objective", b'{"xi_tokens":1,"next_prompt_tokens":NaN}'),
        ("PUT", "objective", b'{"xi_tokens":1,"next_prompt_tokens":0,"epoch":-1}'),
    ],
)
async def test_what_makes_no_sense_is_answered_400(http, method, path, body):
    answer = await http.request(method, f"/v1/tailroute/{path}", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_a_body_without_end_is_answered_413(http):
    answer = await http.post("/v1/tailroute/hints", content=b" " * (5 << 20))
    assert answer.status_code == 413


async def test_metrics_gain_the_counters_and_keep_their_own(http, cores):
    from conftest import text

    cores.caches[0].turn(text(1, 128), "s", extra={EVICT_FIRST: 64})
    answer = await http.get("/metrics")
    lines = answer.text.splitlines()
    assert lines[0] == "vllm:up 1"
    assert 'tailroute:evict_first_blocks{engine="0"} 2' in lines
    assert 'tailroute:requests_hinted_total{engine="0"} 1' in lines
    assert 'tailroute:evicted_blocks_total{engine="1",band="free"} 0' in lines
    assert 'tailroute:hints_total{engine="0",outcome="expired"} 0' in lines
    assert int(answer.headers["content-length"]) == len(answer.content)


async def test_a_busy_engine_is_known_from_before(http, cores):
    cores.busy = True
    assert (await http.get("/v1/tailroute")).json()["capacity_tokens"] == 2048
    assert "tailroute:evict_first_blocks" in (await http.get("/metrics")).text
    answer = await http.post("/v1/tailroute/hints", json={"hints": []})
    assert answer.status_code == 503


async def test_a_dead_engine_is_answered_503_and_metrics_still_come(http, cores):
    cores.available = False
    assert (await http.get("/v1/tailroute")).status_code == 503
    assert (await http.get("/metrics")).text == "vllm:up 1\n"


async def test_an_unsupported_vllm_has_no_routes(monkeypatch):
    install.uninstall()
    monkeypatch.setattr("vllm.__version__", "0.1.0")
    app = FastAPI()
    TailrouteEndpoints().attach_router(app)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        assert (await client.get("/v1/tailroute")).status_code == 404


@pytest.fixture
def anyio_backend():
    return "asyncio"
