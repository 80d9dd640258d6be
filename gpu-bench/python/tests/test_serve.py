"""The worker over HTTP: what the simulated engine's own tests ask of an engine of this contract."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
from client import CHAT, cached, content, streamed, words
from conftest import Server, until

Serve = Callable[..., Server]
HINTS, OBJECTIVE = "/v1/tailroute/hints", "/v1/tailroute/objective"


def test_a_stream_and_a_whole_answer_say_the_same(serve: Serve) -> None:
    client = serve("--per-request-metrics").client
    asked = {"messages": [{"role": "user", "content": "tell me"}], "max_tokens": 40, "temperature": 0.5}
    events = client.stream(CHAT, {**asked, "stream_options": {"include_usage": True}}, {"x-request-id": "abc"})
    assert events[-1] == "[DONE]"
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert events[0]["id"] == "chatcmpl-abc"
    assert (events[-2]["choices"], events[-2]["usage"]["completion_tokens"]) == ([], 40)
    assert events[-2]["metrics"]["time_to_first_token_ms"] > 0
    assert events[-3]["choices"][0]["finish_reason"] == "length"
    whole = client.chat("tell me", max_tokens=40, temperature=0.5)
    assert content(whole) == streamed(events) != ""
    assert whole["usage"]["completion_tokens"] == 40
    other = client.chat("tell me", max_tokens=40, temperature=0.5, seed=1)
    assert content(other) != content(whole)


def test_without_usage_the_finish_chunk_has_the_metrics(serve: Serve) -> None:
    events = serve("--per-request-metrics").client.stream(CHAT, {"messages": [{"role": "user", "content": "hi"}]})
    assert "metrics" in events[-2]
    assert not any("usage" in event for event in events[:-1])


def test_cached_tokens_grow_over_the_turns_of_a_conversation(serve: Serve) -> None:
    client = serve().client
    first = client.chat(words(100), max_tokens=50)
    assert cached(first) == 0
    prompt = first["usage"]["prompt_tokens"]
    history = [("user", words(100)), ("assistant", content(first)), ("user", "and then?")]
    second = client.talk(history, max_tokens=5)
    # Everything but the token said last, in whole blocks of 16.
    assert cached(second) == (prompt + 49) // 16 * 16
    assert cached(client.talk(history, max_tokens=5, cache_salt="tenant")) == 0


def test_what_is_said_does_not_depend_on_what_was_cached(serve: Serve) -> None:
    client = serve().client
    once, again = (client.chat(words(200), max_tokens=20, temperature=0) for _ in range(2))
    assert (cached(once), cached(again)) == (0, 192)
    assert content(once) == content(again)


def test_replies_end_where_they_are_told_to(serve: Serve) -> None:
    client = serve().client
    natural = client.chat("go on")
    assert natural["choices"][0]["finish_reason"] == "stop"
    assert natural["usage"]["completion_tokens"] == 64
    exact = client.chat("go on", max_completion_tokens=7, ignore_eos=True)
    assert exact["choices"][0]["finish_reason"] == "length"
    assert exact["usage"]["completion_tokens"] == 7
    stop = content(natural).split()[10]
    before = content(natural)[: content(natural).find(stop)]
    whole = client.chat("go on", stop=[stop])
    events = client.stream(CHAT, {"messages": [{"role": "user", "content": "go on"}], "stop": stop})
    assert content(whole) == streamed(events) == before
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert whole["usage"]["completion_tokens"] < 64


def test_plain_completions_take_text_and_tokens_and_tokenize_counts_them(serve: Serve) -> None:
    client = serve().client
    status, tokens = client.call("POST", "/tokenize", {"prompt": words(40)})
    assert (status, tokens["count"]) == (200, 40)
    path = "/v1/completions"
    _, answer = client.call("POST", path, {"prompt": words(40), "max_tokens": 3})
    assert (answer["object"], answer["usage"]["prompt_tokens"]) == ("text_completion", 40)
    _, again = client.call("POST", path, {"prompt": tokens["tokens"], "max_tokens": 3})
    assert again["choices"][0]["text"] == answer["choices"][0]["text"]
    assert cached(again) == 32
    assert streamed(client.stream(path, {"prompt": [words(40)], "max_tokens": 3})) == answer["choices"][0]["text"]


def say(text: str, **more: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": text}], **more}).encode()


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", CHAT, b"{not json", 400),
        ("POST", CHAT, b'"text"', 400),
        ("POST", CHAT, b"[" * 4000, 400),
        ("POST", CHAT, b"{}", 400),
        ("POST", CHAT, b'{"messages":"hi"}', 400),
        ("POST", CHAT, b'{"messages":[{"content":"hi"}]}', 400),
        ("POST", CHAT, b'{"prompt":[1,-1]}', 400),
        ("POST", CHAT, b'{"prompt":[99999999]}', 400),
        ("POST", CHAT, b'{"prompt":["a","b"]}', 400),
        ("POST", CHAT, b'{"prompt":""}', 400),
        ("POST", CHAT, say("hi", max_tokens=-1), 400),
        ("POST", CHAT, say("hi", max_tokens=0), 400),
        ("POST", CHAT, say("hi", max_tokens=10**30), 400),
        ("POST", CHAT, say("hi", n=2), 400),
        ("POST", CHAT, say("hi", stream="yes"), 400),
        ("POST", CHAT, say("hi", stream_options=[]), 400),
        ("POST", CHAT, say("hi", stop=[1]), 400),
        ("POST", CHAT, say("hi", tool_choice="required", tools=[]), 400),
        ("POST", CHAT, b'{"messages":[],"temperature":NaN}', 400),
        ("POST", CHAT, say("hi", model="other"), 404),
        ("POST", "/v1/embeddings", say("hi"), 404),
        ("GET", CHAT, None, 405),
        ("POST", CHAT, say(words(120), max_tokens=9), 413),
        ("POST", CHAT, say("x" * 5000), 413),
        ("POST", CHAT, say("hi", max_tokens=9), 503),
        ("POST", HINTS, b'{"hints":1}', 400),
        ("PUT", OBJECTIVE, b'{"xi_tokens":-1,"next_prompt_tokens":0}', 400),
        ("PUT", OBJECTIVE, b'{"xi_tokens":1}', 400),
        *(
            ("PUT", OBJECTIVE, b'{"xi_tokens":1,"next_prompt_tokens":0,%s}' % more, 400)
            for more in (b'"ttl_ms":0', b'"ttl_ms":1e999', b'"ttl_ms":true', b'"t_lru":1')
        ),
    ],
)
def test_errors_are_openai_shaped_with_the_right_status(
    strict: Server, method: str, path: str, body: bytes | None, status: int
) -> None:
    found, answer = strict.client.call(method, path, body)
    assert (found, answer["error"]["code"]) == (status, status), answer
    assert answer["error"]["message"]
    assert answer["error"]["type"].endswith("Error")


@pytest.fixture(scope="module")
def strict() -> Any:
    """A worker that takes next to nothing."""
    started = Server("--max-model-len", "100", "--max-body-bytes", "4096", "--max-queued", "0")
    yield started
    started.stop()


def test_a_bad_header_is_named(serve: Serve) -> None:
    header = "x-tailroute-evict-first-tokens"
    client = serve().client
    for wrong in ("-1", "1.5", "many", "9" * 30):
        status, answer = client.call("POST", CHAT, say("hi"), {header: wrong})
        assert (status, header in answer["error"]["message"]) == (400, True)


def test_what_is_switched_off_is_not_told(serve: Serve) -> None:
    answer = serve("--no-cached-tokens-report").client.chat("hi")
    assert answer["usage"]["prompt_tokens_details"] is None
    assert "metrics" not in answer


def test_metrics_go_by_vllms_names(serve: Serve) -> None:
    client = serve().client
    for _ in range(2):
        client.chat(words(40), max_tokens=1)
    page = client.call("GET", "/metrics")[1]

    def value(name: str, labels: str = "") -> float:
        head = f'{name}{{engine="0",model_name="micro"{labels}}} '
        (line,) = [line for line in page.splitlines() if line.startswith(head)]
        return float(line.removeprefix(head))

    assert value("vllm:num_requests_waiting") == value("vllm:num_requests_running") == 0
    assert value("vllm:kv_cache_usage_perc") == 0
    # The template adds three tokens: 43 a prompt, of which two blocks of 16 are found.
    assert value("vllm:prefix_cache_queries_total") == 86
    assert value("vllm:prefix_cache_hits_total") == 32
    assert value("vllm:request_prefill_kv_computed_tokens_sum") == 54
    assert value("vllm:time_to_first_token_seconds_bucket", ',le="2560.0"') == 2
    assert value("vllm:time_to_first_token_seconds_count") == 2
    assert value("vllm:request_prefill_time_seconds_sum") > 0
    assert value("vllm:request_success_total", ',finished_reason="length"') == 2
    info = ',block_size="16",num_gpu_blocks="512",enable_prefix_caching="True"'
    assert value("vllm:cache_config_info", info) == 1


def test_models_and_health_answer(serve: Serve) -> None:
    client = serve("--model", "mine").client
    card = client.call("GET", "/v1/models")[1]["data"][0]
    assert (card["id"], card["max_model_len"]) == ("mine", 2048)
    assert client.call("GET", "/health")[0] == 200


def test_the_capability_document_says_what_is_understood(serve: Serve) -> None:
    says = serve().client.call("GET", "/v1/tailroute")[1]
    assert (says["dialect"], says["block_size"], says["capacity_tokens"]) == ("tailroute", 16, 8192)
    assert (says["objective"], says["objective_ttl"]) == (True, True)
    assert says["hints"] == ["trim", "ended", "moved", "protect"]


def test_hints_name_a_session_however_it_was_named(serve: Serve) -> None:
    worker = serve()
    client = worker.client
    text = words(61)
    client.chat("a" + text, {"x-session-id": "head"}, max_tokens=1)
    client.chat("b" + text, max_tokens=1, session_id="body")
    client.chat("c" + text, max_tokens=1, vllm_xargs={"session_id": "xargs"})
    hints = [
        {"kind": "trim", "session_id": "head", "keep_tokens": 48, "epoch": 7, "ttl_ms": 60_000},
        {"kind": "ended", "session_id": "body"},
        {"kind": "moved", "session_id": "xargs", "keep_tokens": 32},
        {"kind": "trim", "session_id": "head", "keep_tokens": 0, "epoch": 6},
        {"kind": "trim", "session_id": "nobody", "keep_tokens": 0},
        {"kind": "ended", "session_id": "body", "ttl_ms": 0},
        {"kind": "shred", "session_id": "body"},
        {"kind": "trim", "session_id": "body", "keep_tokens": -1},
        7,
    ]
    status, answer = client.call("POST", HINTS, {"hints": hints})
    assert status == 200
    assert answer == {"applied": 3, "pending": 0, "expired": 1, "stale": 1, "unknown": 1, "rejected": 3}
    stats = worker.stats()
    assert stats["cache_evict_first_tokens"] == 16 + 64 + 32
    assert (stats["memory"]["hints_applied"], stats["memory"]["hints_rejected"]) == (3, 3)


def test_the_header_and_the_objective_mark_at_release(serve: Serve) -> None:
    worker = serve()
    client, text = worker.client, words(77)
    # 80 tokens with the template, and one said: five full blocks.
    answer = client.chat(text, {"x-tailroute-evict-first-tokens": "33"}, max_tokens=1)
    assert answer["usage"]["total_tokens"] == 81
    assert worker.stats()["cache_evict_first_tokens"] == 32, "81 - 33 = 48: three blocks stay"
    objective = {"xi_tokens": 60.0, "next_prompt_tokens": 11.0, "epoch": 3}
    assert client.call("PUT", OBJECTIVE, objective)[1]["applied"] is True
    client.chat(text, max_tokens=1)
    assert worker.stats()["cache_evict_first_tokens"] == 48, "81 + 11 - 60 = 32: two blocks stay"
    stale = client.call("PUT", OBJECTIVE, {**objective, "epoch": 2})[1]
    assert (stale["applied"], stale["objective"]["epoch"]) == (False, 3)


def test_an_objective_is_told_in_metrics_while_it_is_in_force(serve: Serve) -> None:
    client = serve().client
    sent = {"xi_tokens": 60.0, "next_prompt_tokens": 11.0, "epoch": 3, "ttft_objective_ms": 300.0, "mix": []}

    def told() -> dict[str, float]:
        page = client.call("GET", "/metrics")[1]
        found = re.findall(r"^tailroute_torch:objective_(\w+)\{.*\} (\S+)$", page, re.MULTILINE)
        return {name: float(value) for name, value in found if name != "age_seconds"}

    assert told() == {"t_lru": 0}
    answer = client.call("PUT", OBJECTIVE, {**sent, "ttl_ms": 1e7})[1]["objective"]
    assert (answer["ttl_ms"], answer["ttft_objective_ms"], answer["expired"]) == (1e7, 300.0, False)
    assert told() == {"xi_tokens": 60, "next_prompt_tokens": 11, "epoch": 3, "t_lru": 1}
    client.call("PUT", OBJECTIVE, {**sent, "ttl_ms": 1e-3})
    until(lambda: told() == {"epoch": 3, "t_lru": 0})


@pytest.mark.parametrize(("trimmed", "kept"), [(False, 96), (True, 160)])
def test_a_trimmed_conversation_makes_room_for_an_older_one(serve: Serve, trimmed: bool, kept: int) -> None:
    worker = serve("--capacity-blocks", "32", "--max-model-len", "512")
    client, older, newer = worker.client, words(157), words(200)
    client.chat("a" + older, {"x-session-id": "a"}, max_tokens=1)
    client.chat("b" + newer, {"x-session-id": "b"}, max_tokens=1)
    if trimmed:
        client.call("POST", HINTS, {"hints": [{"kind": "trim", "session_id": "b", "keep_tokens": 16}]})
    # 10 and 12 blocks are held; of the 14 that this one takes, 4 have to come from them.
    client.chat("c" + words(220), max_tokens=1)
    assert cached(client.chat("a" + older, max_tokens=1)) == kept
    worker.engine.memory.cache.check()


def test_a_client_that_leaves_frees_what_it_held(serve: Serve) -> None:
    worker = serve()
    endless = {"messages": [{"role": "user", "content": "go on"}], "max_tokens": 2000}
    for stream in (True, False):
        answer = threading.Thread(target=leave, args=(worker, {**endless, "stream": stream}))
        answer.start()
        answer.join()
    until(lambda: worker.stats()["aborted"] == 2)
    stats = worker.stats()
    assert (stats["running"], stats["cache_pinned_tokens"], stats["completed"]) == (0, 0, 0)
    worker.engine.memory.cache.check()
    assert worker.engine._promised == 0
    assert worker.engine.memory.cache.private == 0


def leave(worker: Server, body: dict[str, Any]) -> None:
    data = json.dumps(body).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", worker.port)) as connection:
        connection.sendall(head + data)
        until(lambda: worker.stats()["generation_tokens"] > 3 and worker.stats()["running"] == 1)


def test_many_at_once_say_what_each_says_alone(serve: Serve) -> None:
    worker = serve("--max-running", "4", "--prefill-tokens", "32")
    prompts = [words(20 + 37 * at) + f" {at}" for at in range(8)]
    asked = {"max_tokens": 30, "temperature": 0}
    together: list[str] = [""] * len(prompts)

    def ask(at: int) -> None:
        together[at] = content(worker.client.chat(prompts[at], **asked))

    threads = [threading.Thread(target=ask, args=(at,)) for at in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alone = serve()
    assert together == [content(alone.client.chat(prompt, **asked)) for prompt in prompts]
    worker.engine.memory.cache.check()
    assert worker.engine._promised == 0
