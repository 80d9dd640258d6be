"""Real clients through the router to a real engine."""

import time

import anthropic
import openai
import pytest
from langchain_openai import ChatOpenAI
from processes import MODEL, MS_PER_TOKEN, Router, http, prefill_ms, until
from talk import SAYABLE, complete, ids, words

ANSWERS = "tailroute_worker_cost_answers_total"
QUEUE = "tailroute_worker_queue"
GENERATED = "vllm:generation_tokens_total"
RUNNING = "vllm:num_requests_running"
ASK = [{"role": "user", "content": words(1, 100)}]


@pytest.fixture(scope="module")
def router(engine):
    with Router("clients", [engine]) as started:
        yield started


@pytest.fixture(scope="module")
def client(router):
    return openai.OpenAI(base_url=router.v1, api_key="none", max_retries=0)


def test_a_chat_in_one_piece_and_streamed_say_the_same(client):
    asked = {"model": MODEL, "messages": ASK, "max_tokens": 20, "temperature": 0}
    whole = client.chat.completions.create(**asked)
    assert whole.usage.completion_tokens == 20
    stream = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert said == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == 20
    assert len(chunks) > 10, "it came in pieces"
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens >= 64


def test_completions_models_and_errors_are_openais(client):
    answer = client.completions.create(model=MODEL, prompt="once upon", max_tokens=5)
    assert answer.usage.completion_tokens == 5
    assert [model.id for model in client.models.list()] == [MODEL]
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=ASK)
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=-1)


def test_vllms_own_fields_arrive_beside_the_routers(client):
    answer = client.chat.completions.create(
        model=MODEL,
        messages=ASK,
        max_tokens=8,
        extra_body={"allowed_token_ids": SAYABLE[:1], "vllm_xargs": {"mine": 1}, "min_tokens": 8},
    )
    assert len(set(answer.choices[0].message.content.split())) == 1


def test_langchain(router):
    chat = ChatOpenAI(base_url=router.v1, api_key="none", model=MODEL, max_tokens=10, max_retries=0, temperature=0)
    whole = chat.invoke(words(2, 50))
    assert whole.usage_metadata["output_tokens"] == 10
    assert "".join(str(part.content) for part in chat.stream(words(2, 50))) == whole.content


def test_anthropics_client_passes_through(router):
    client = anthropic.Anthropic(base_url=router.url, api_key="none", max_retries=0)
    asked = {"model": MODEL, "max_tokens": 10, "messages": ASK}
    whole = client.messages.create(**asked)
    assert whole.usage.output_tokens == 10
    with client.messages.stream(**asked) as stream:
        assert stream.get_final_message().usage.output_tokens == 10


def while_it_answers(engine, base, tokens, seen):
    """Has a long answer begun, and leaves once `seen`. What runs is over within seconds, and on a machine that gives others
    no time that may be before anybody has looked: then it is asked again."""
    body = {"model": MODEL, "messages": ASK, "max_tokens": tokens, "min_tokens": tokens, "stream": True}
    for _ in range(10):
        before = engine.metric(GENERATED)
        with http.stream("POST", f"{base}/v1/chat/completions", json=body, timeout=180) as answer:
            assert answer.status_code == 200
            # Kept by name: dropped, it would close the answer.
            pieces = answer.iter_bytes()
            next(pieces)
            end = time.monotonic() + 60
            while engine.metric(GENERATED) - before < tokens - 1 and time.monotonic() < end:
                if seen():
                    return
    raise AssertionError("ten answers were over before what was waited for was seen")


def test_a_client_that_leaves_takes_its_request_with_it(router, engine, client):
    def idle():
        # vLLM tells its figures with each step: something has to run for it to say that nothing else does.
        client.completions.create(model=MODEL, prompt="hi", max_tokens=1)
        return engine.metric(RUNNING) == 0

    def cut_short():
        before = engine.metric(GENERATED)
        while_it_answers(engine, router.url, 2000, lambda: engine.metric(RUNNING) == 1)
        until("it to be gone from the engine", idle)
        return engine.metric(GENERATED) - before < 1900

    # One that is near its end when its client leaves shows nothing.
    assert any(cut_short() for _ in range(5)), "each of five ran to its end"


def test_what_vllm_says_of_its_queue_and_of_its_prefills_is_learned(engine):
    prefills = "vllm:request_prefill_time_seconds_sum"
    with Router("learning", [engine], learn_costs=True) as router:
        # Long and short prompts, each of its own, so that nothing of them is cached.
        before = engine.metric(prefills)
        asked = [ids(700 + at, 100 + 250 * (at % 7)) for at in range(28)]
        for at, prompt in enumerate(asked):
            assert complete(router.url, prompt, f"cost-{at}").cached == 0
        answers = len(asked)
        until("its times to be learned from", lambda: router.metric(ANSWERS, told="engine") == answers)
        took_ms = 1e3 * (engine.metric(prefills) - before)
        cost = router.cost()
        believed_ms = sum(prefill_ms(cost, len(prompt)) for prompt in asked)
        print(f"{answers} prefills took {took_ms:.0f} ms by its metrics, {believed_ms:.0f} ms by {cost}")
        # What others do on this machine moves single prefills by more than that, but not the sum.
        assert took_ms / 2 < believed_ms < took_ms * 2
        assert cost["alpha_ms_per_token"] != MS_PER_TOKEN
        # A request that is not the router's.
        while_it_answers(engine, engine.url, 2400, lambda: router.metric(QUEUE, what="running") == 1)
