"""Sessions, hints and the objective."""

from __future__ import annotations

from tailroute_torch.serve.cache import Lease
from tailroute_torch.serve.memory import CacheTerms, Hint, Memory, Objective

BLOCK = 16


def memory(blocks: int = 32, sessions: int = 8) -> Memory:
    return Memory(blocks, BLOCK, sessions)


def names(session: str, blocks: int) -> list[bytes]:
    return [f"{session}{at}".encode() for at in range(blocks)]


def begin(memory: Memory, terms: CacheTerms, chain: list[bytes]) -> Lease:
    memory.arrived(terms)
    lease = memory.cache.acquire(chain)
    for name in chain[len(lease.nodes) :]:
        block = memory.cache.take()
        assert block is not None
        memory.cache.store(lease, name, block)
    return lease


def turn(memory: Memory, session: str, blocks: int, tail: int | None = None) -> None:
    terms, chain = CacheTerms(session, tail), names(session, blocks)
    memory.finished(0.0, terms, begin(memory, terms, chain), chain, blocks * BLOCK)


def test_trim_keeps_the_beginning_and_ended_and_moved_nothing() -> None:
    told = memory()
    for session in ("a", "b", "c"):
        turn(told, session, 4)
    assert told.hint(0.0, Hint("trim", "a", keep_tokens=33)) == "applied"
    assert told.cache.order()[:1] == [b"a3"], "33 tokens begin in three blocks"
    assert told.hint(0.0, Hint("ended", "b")) == "applied"
    assert told.hint(0.0, Hint("moved", "c", keep_tokens=32)) == "applied"
    assert told.cache.evict_first == 1 + 4 + 2
    told.cache.check()


def test_protect_clears_marks_and_counts_as_a_use() -> None:
    told = memory()
    turn(told, "a", 4, tail=64)
    turn(told, "b", 2)
    assert told.cache.evict_first == 4
    assert told.hint(0.0, Hint("protect", "a")) == "applied"
    assert told.cache.evict_first == 0
    assert told.cache.order() == [b"b1", b"b0", b"a3", b"a2", b"a1", b"a0"]


def test_a_hint_waits_for_the_running_turn_until_its_time_is_over() -> None:
    for ended_at_ms, evict_first, expired in ((99.0, 4, 0), (100.0, 0, 1)):
        told, terms, chain = memory(), CacheTerms("a"), names("a", 4)
        lease = begin(told, terms, chain)
        assert told.hint(0.0, Hint("ended", "a", ttl_ms=100.0)) == "pending"
        assert told.cache.evict_first == 0
        told.finished(ended_at_ms, terms, lease, chain, 64)
        assert (told.cache.evict_first, told.hints.expired) == (evict_first, expired)


def test_what_is_old_or_unknown_changes_nothing() -> None:
    told = memory()
    turn(told, "a", 4)
    assert told.hint(0.0, Hint("trim", "a", keep_tokens=64, epoch=7)) == "applied"
    assert told.hint(0.0, Hint("ended", "a", epoch=6)) == "stale"
    assert told.hint(0.0, Hint("ended", "a", ttl_ms=0.0)) == "expired"
    assert told.hint(0.0, Hint("ended", "nobody")) == "unknown"
    assert told.cache.evict_first == 0


def test_the_tail_of_a_request_counts_from_its_end() -> None:
    told = memory()
    # 64 - 30 = 34 tokens: three blocks begin within them.
    turn(told, "a", 4, tail=30)
    assert told.cache.order()[0] == b"a3"
    assert told.cache.evict_first == 1


def test_the_objective_is_the_budget_of_turns_without_a_tail() -> None:
    told = memory()
    assert told.set_objective(0.0, Objective(xi_tokens=60.0, next_prompt_tokens=10.5, epoch=3))
    # 64 + 10.5 - 60 = 14.5 tokens: one block begins within them.
    turn(told, "a", 4)
    assert told.cache.evict_first == 3
    assert not told.set_objective(0.0, Objective(0.0, 0.0, epoch=2))
    assert told.objective is not None
    assert told.objective.epoch == 3
    turn(told, "b", 4, tail=0)
    assert told.cache.evict_first == 3, "a tail of its own is stronger"
    told.set_objective(0.0, Objective(16.0, 0.0, epoch=3))
    assert told.cache.evict_first == 1, "at eviction the one of now decides"
    told.set_objective(0.0, Objective(60.0, 0.0, epoch=3, t_lru=False))
    assert told.cache.evict_first == 0, "it is for information"


def test_an_objective_that_is_not_renewed_leaves_lru_and_the_marks_of_hints() -> None:
    told = memory(blocks=12)
    told.set_objective(0.0, Objective(32.0, 0.0, epoch=5, ttl_ms=100.0))
    turn(told, "a", 4)
    turn(told, "b", 4, tail=16)
    turn(told, "c", 4)
    told.hint(0.0, Hint("trim", "c", keep_tokens=48))
    assert told.set_objective(80.0, Objective(32.0, 0.0, epoch=6, ttl_ms=100.0))
    assert told.cache.order()[:5] == [b"a3", b"a2", b"b3", b"c3", b"c2"]
    told.take(179.0)
    assert told.cache.order()[:2] == [b"a2", b"b3"]
    told.take(180.0)
    assert told.cache.order()[:4] == [b"c3", b"a2", b"a1", b"a0"]
    assert (told.cache.evicted_by_xi, told.cache.evicted_by_hint) == (1, 1)
    assert not told.set_objective(200.0, Objective(32.0, 0.0, epoch=5)), "older than the one that expired"
    assert told.set_objective(200.0, Objective(32.0, 0.0, epoch=6))
    told.take(1e12)
    assert told.cache.evict_first > 1, "without a time to live"


def test_sessions_are_bounded_and_who_was_silent_longest_is_forgotten() -> None:
    told = memory(sessions=2)
    for session in ("a", "b", "a", "c"):
        turn(told, session, 1)
    assert told.sessions == 2
    assert told.hint(0.0, Hint("ended", "b")) == "unknown"
    assert told.hint(0.0, Hint("ended", "a")) == "applied"
