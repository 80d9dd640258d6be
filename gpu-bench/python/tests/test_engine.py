"""The engine without HTTP: what it computes, and when it says that it is done."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from conftest import CPU, MICRO, PATIENCE_S, decoder

from tailroute_torch.paged import KvPool
from tailroute_torch.serve.engine import Engine, EngineLimits, OverloadedError, Turn
from tailroute_torch.serve.memory import CacheTerms
from tailroute_torch.serve.request import Asked
from tailroute_torch.serve.tokens import Chain, Vocabulary

BLOCK = 16
VOCABULARY = Vocabulary(MICRO.vocabulary)
MODEL = decoder()


def asked(tokens: list[int], output: int, session: str | None = None) -> Asked:
    chain = Chain(BLOCK, None, tokens)
    return Asked(chain, len(tokens), output, "length", (), 0.0, 1, CacheTerms(session), False, False)


@pytest.fixture
def engine() -> Iterator[Engine]:
    limits = EngineLimits(max_queued=4, max_running=2, prefill_tokens=24, max_sessions=8)
    started = Engine(MODEL, KvPool(MICRO, 16, BLOCK, CPU, torch.float32), VOCABULARY, limits)
    yield started
    started.stop()


def finish(engine: Engine, asked: Asked) -> Turn:
    done = threading.Event()
    turn: list[Turn] = []

    def tell() -> None:
        if turn and turn[0].done:
            done.set()

    turn.append(engine.submit(asked, tell))
    tell()
    assert done.wait(PATIENCE_S)
    assert not turn[0].failed
    return turn[0]


@torch.inference_mode()
def by_hand(tokens: list[int], output: int) -> list[int]:
    """The most likely words, each from a prefill of everything before it."""
    said: list[int] = []
    for _ in range(output):
        pool = KvPool(MICRO, 16, BLOCK, CPU, torch.float32)
        text = torch.tensor(tokens + said)
        hidden = MODEL(text, pool, pool.prefill(list(range(16)), 0, len(text)))
        logits = MODEL.logits(hidden[-1:])[0, VOCABULARY.sayable]
        said.append(VOCABULARY.sayable[int(logits.argmax())])
    return said


@pytest.mark.parametrize("length", [1, 15, 16, 17, 24, 70])
def test_what_it_says_is_what_the_model_says_of_everything_before(engine: Engine, length: int) -> None:
    tokens = [(7 * at + length) % MICRO.vocabulary for at in range(length)]
    expected = "".join(map(VOCABULARY.word, by_hand(tokens, 20)))
    for cached in (0, (length - 1) // BLOCK * BLOCK):
        turn = finish(engine, asked(tokens, 20))
        assert (turn.cached, turn.said.text) == (cached, expected)


class Gate:
    """A turn at whose first word the engine stops until it is let go on."""

    def __init__(self, engine: Engine) -> None:
        self._reached, self._open = threading.Event(), threading.Event()
        self.turn = engine.submit(asked(list(range(100)), 60), self._tell)
        assert self._reached.wait(PATIENCE_S)
        self._engine = engine

    def open(self, abort: bool = True) -> None:
        if abort:
            self._engine.abort(self.turn)
        self._open.set()

    def _tell(self) -> None:
        self._reached.set()
        assert self._open.wait(PATIENCE_S)


def test_when_it_says_that_it_is_done_nothing_is_held_any_more(engine: Engine) -> None:
    """So a hint that follows an answer finds its turn over."""
    gate = Gate(engine)
    held: list[int] = []
    done = threading.Event()

    def tell() -> None:
        if turn.done:
            with engine.lock:
                cache = engine.memory.cache
                held.append(engine.running + cache.pinned + cache.private)
            done.set()

    turn = engine.submit(asked([1] * 40, 5, "a"), tell)
    gate.open()
    assert done.wait(PATIENCE_S)
    assert held == [0]
    assert turn.finish == "length"


def test_a_full_queue_refuses_and_what_waits_is_served_in_its_order(engine: Engine) -> None:
    gate = Gate(engine)
    order: list[int] = []
    served = threading.Semaphore(0)

    def tell(at: int) -> None:
        order.append(at)
        served.release()

    turns = [engine.submit(asked([at + 1] * 50, 1), lambda at=at: tell(at)) for at in range(4)]
    with pytest.raises(OverloadedError):
        engine.submit(asked([9] * 50, 1), lambda: None)
    gate.open()
    for _ in range(4):
        assert served.acquire(timeout=PATIENCE_S)
    assert order == [0, 1, 2, 3]
    assert not any(turn.failed for turn in turns)
    assert (engine.counters.refused, engine.counters.aborted) == (1, 1)


def test_a_turn_waits_until_there_is_room_for_all_of_it(engine: Engine) -> None:
    gate = Gate(engine)
    seen: list[bool] = []
    served = threading.Event()

    def tell() -> None:
        seen.append(gate.turn.done)
        served.set()

    # The gate's turn was promised 10 of the 16 blocks; this one may need 7.
    waits = engine.submit(asked([1] * 90, 20), tell)
    gate.open(abort=False)
    assert served.wait(PATIENCE_S)
    assert seen[0], "it began beside the other one"
    assert not waits.failed
    with engine.lock:
        engine.memory.cache.check()
