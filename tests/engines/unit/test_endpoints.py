"""The HTTP side against an engine core that answers at once."""

import asyncio
import json
import re

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
    assert (says["objective"], says["objective_ttl"]) == (True, True)
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
    newer = {"xi_tokens": 60.0, "next_prompt_tokens": 10.0, "epoch": 3, "ttl_ms": 30_000.0, "ttft_objective_ms": 300.0}
    more = {"mix": [{"ttft_objective_ms": 300.0, "share": 1.0}], "observed": {"turns": 128}, "cost": {"beta_ms": 3.0}}
    told = {**newer, "t_lru": True, "expired": False}
    for sent, applied in [({**newer, **more}, True), ({**newer, "epoch": 2}, False)]:
        answer = (await http.put("/v1/tailroute/objective", json=sent)).json()
        assert 0 <= answer["objective"].pop("age_s") < 30
        assert answer == {"applied": applied, "objective": told}


@pytest.mark.parametrize("no_number", [b"-1", b"NaN", b"1e999", b'"300"', b"null"])
async def test_an_objective_says_what_it_is_for_if_it_can(http, no_number):
    body = b'{"xi_tokens":60,"next_prompt_tokens":10,"ttft_objective_ms":' + no_number + b"}"
    answer = (await http.put("/v1/tailroute/objective", content=body)).json()
    assert (answer["applied"], answer["objective"]["ttft_objective_ms"]) == (True, None)


async def test_metrics_tell_the_objective_and_that_it_has_expired(http, cores):
    now = 100.0
    for cache in cores.caches:
        cache.director._clock = lambda: now
    sent = {"xi_tokens": 60, "next_prompt_tokens": 10, "epoch": 3, "ttl_ms": 2000}
    assert objective_of_rank_0(await http.get("/metrics")) == {"t_lru": 0}
    for more, t_lru in [({}, 1), ({"t_lru": False}, 0)]:
        await http.put("/v1/tailroute/objective", json={**sent, **more})
        now += 1.5
        assert objective_of_rank_0(await http.get("/metrics")) == {
            "xi_tokens": 60, "next_prompt_tokens": 10, "epoch": 3, "age_seconds": 1.5, "t_lru": t_lru,
        }  # fmt: skip
    now += 1.5
    assert objective_of_rank_0(await http.get("/metrics")) == {"epoch": 3, "age_seconds": 3, "t_lru": 0}


def objective_of_rank_0(page) -> dict[str, float]:
    found = re.findall(r'^tailroute:objective_(\w+)\{engine="0"\} (\S+)$', page.text, re.MULTILINE)
    return {name: float(value) for name, value in found}


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


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("ttl_ms", value) for value in [b"0", b"-1", b"NaN", b"1e999", b"1" + 400 * b"0", b'"30000"', b"true"]),
        *(("t_lru", value) for value in [b"1", b'"yes"']),
    ],
)
async def test_an_objective_with_a_wrong_field_is_answered_400_and_its_name(http, field, value):
    body = b'{"xi_tokens":1,"next_prompt_tokens":0,"%s":%s}' % (field.encode(), value)
    answer = await http.put("/v1/tailroute/objective", content=body)
    assert answer.status_code == 400
    assert f"`{field}`" in answer.json()["error"]["message"]


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
    cores.caches[0].evicted(64)
    lines = (await http.get("/metrics")).text.splitlines()
    assert 'tailroute:evicted_first_tokens_total{engine="0",cause="hint"} 64' in lines
    assert 'tailroute:evicted_first_tokens_total{engine="0",cause="xi"} 0' in lines
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
