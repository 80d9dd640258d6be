"""What the router says is cached against what vLLM reports, over random conversations, and over a crash."""

import random
import signal

import pytest
from events import Listener
from processes import Engine, Router, until
from talk import Conversation, Usage, blocks, words

TURNS = 200
PREDICTED = "tailroute_prompt_tokens_total"
AGREEMENT = "tailroute_cached_tokens_agreement_total"


class Talks:
    """Conversations that share system prompts, fork at earlier turns, and are more than the cache holds."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._talks: list[Conversation] = []

    def next(self) -> tuple[Conversation, str]:
        chance, talks = self._chance, self._talks
        what = chance.random()
        if not talks or what < 0.15:
            system = {"role": "system", "content": words(chance.randrange(3), 96)}
            talks.append(Conversation(f"talk-{len(talks)}", [system]))
            return talks[-1], "new"
        if what < 0.25:
            parent = chance.choice(talks[-6:])
            turns = (len(parent.messages) - 1) // 2
            talks.append(parent.fork(f"talk-{len(talks)}", chance.randint(0, turns)))
            return talks[-1], "fork"
        return chance.choice(talks[-8:]), "goes on"

    def turn(self, url: str, at: int) -> tuple[Conversation, Usage, str]:
        """One turn of one of them: how it went, and of what kind it was."""
        talk, what = self.next()
        used = talk.say(url, words(1000 + at, self._chance.randint(10, 90)), self._chance.randint(2, 24))
        return talk, used, what


def drive(engine: Engine, router: Router, seed: int, followed: bool) -> dict[str, float]:
    """The share of answers whose cached tokens were predicted, exactly and within a block."""
    listener = Listener(engine)
    talks, expected, cached = Talks(seed), 0, 0
    told = router.metric("tailroute_kv_events_total")
    for at in range(TURNS):
        if at == TURNS // 2:
            engine.reset_cache()
        before = router.metric(PREDICTED, kind="predicted_cached")
        talk, used, what = talks.turn(router.url, at)
        cached += used.cached
        # The last token of an answer is never computed. What was stored is known, so nothing has to be slept over: the
        # router has what the listener has as soon as both have seen as many events.
        expected += blocks(used.prompt + used.completion - 1) - blocks(used.cached)
        until(
            f"events of turn {at}",
            lambda: sum(len(hashes) for _, hashes in listener.stored) >= expected,
        )
        until("the router to be at rest", lambda: router.metric("tailroute_worker_in_flight") == 0)
        predicted = router.metric(PREDICTED, kind="predicted_cached") - before
        if predicted != used.cached:
            print(f"turn {at}: {talk.name} ({what}, {used.prompt} tokens): predicted {predicted:.0f}, found {used.cached}")
        if followed:
            seen = told + len(listener.stored) + len(listener.removed) + listener.cleared
            until("the router to have seen as much", lambda: router.metric("tailroute_kv_events_total") >= seen)
    listener.close()
    # What the cache forgot before the first turn is told with it.
    assert listener.cleared in (1, 2) and listener.removed, "the cache was reset, and was full"
    share = {name: router.metric(AGREEMENT, agreement=name) for name in ("exact", "block", "tenth", "off")}
    total = sum(share.values())
    by_events = router.metric(AGREEMENT, evidence="events") / total
    print(f"{TURNS} turns, {cached} cached tokens, {by_events:.0%} told by events: {share}")
    assert total == TURNS
    return {name: count / total for name, count in share.items()} | {"events": by_events}


def test_with_events_the_cached_tokens_are_known(fresh):
    with Router("agreement-events", [fresh]) as router:
        until("its events to be followed", lambda: router.metric("tailroute_kv_stream_live") == 1)
        seen = drive(fresh, router, 1, True)
    assert seen["exact"] >= 0.99


@pytest.mark.parametrize("hints", [False, True])
def test_the_mirror_alone_knows_most(fresh, hints):
    with Router(f"agreement-mirror-{hints}", [fresh], events=False, hints=hints) as router:
        seen = drive(fresh, router, 2, False)
    assert seen["events"] == 0
    assert seen["exact"] >= 0.90


def test_an_engine_that_is_killed_is_forgotten_and_relearned(fresh):
    engine = fresh
    with Router("restart", [engine]) as router:
        live = lambda: router.metric("tailroute_kv_stream_live") == 1  # noqa: E731
        ready = lambda: router.metric("tailroute_worker_ready") == 1  # noqa: E731
        until("its events to be followed", live)
        talk = Conversation("survivor", [{"role": "system", "content": words(5, 200)}])
        talk.say(router.url, words(6, 50), 8)
        until("the router to know it", lambda: router.metric("tailroute_kv_blocks") >= 8)
        assert talk.say(router.url, words(7, 50), 8).cached >= 256
        engine.stop(signal.SIGKILL)
        until("its death to be noticed", lambda: not ready())
        engine.restart()
        until("it to be back", ready)
        until("its events to be followed again", live)
        off = sum(router.metric(AGREEMENT, agreement=name) for name in ("block", "tenth", "off"))
        exact = router.metric(AGREEMENT, agreement="exact")
        first = talk.say(router.url, words(8, 50), 8)
        assert first.cached == 0
        until("the router to have relearned it", lambda: router.metric("tailroute_kv_blocks") >= 10)
        assert talk.say(router.url, words(9, 50), 8).cached >= 320
        until("both to be counted", lambda: router.metric(AGREEMENT, agreement="exact") == exact + 2)
        assert off == sum(router.metric(AGREEMENT, agreement=name) for name in ("block", "tenth", "off"))
