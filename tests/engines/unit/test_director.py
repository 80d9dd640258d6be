"""Hints, objective and sessions against vLLM's own cache manager."""

import pytest
from conftest import BLOCK, text
from tailroute_vllm.director import EVICT_FIRST, Objective

XARG = EVICT_FIRST


def ninety_nine(cache, hint):
    """A older with 1024 tokens, B newer with 1024, then C with 1600, in 99 blocks. What A still has."""
    one = cache(99)
    one.turn(text(1, 1024), "A")
    one.turn(text(2, 1024), "B", extra=hint)
    one.turn(text(3, 1600), "C")
    return one, one.resident(text(1, 1024))


def test_the_ninety_nine_block_experiment(cache):
    stock, unhinted = ninety_nine(cache, None)
    hinted, with_hint = ninety_nine(cache, {XARG: 512})
    assert (unhinted, with_hint) == (544, 1024)
    assert stock.queue.evicted_free == 0 and hinted.queue.evicted_lru == 0


@pytest.mark.parametrize(
    "extra", [{XARG: 512}, {"kv_transfer_params": {XARG: 512}}, {XARG: 512, "kv_transfer_params": {XARG: 0}}]
)
def test_a_request_brings_its_hint_in_either_field(cache, extra):
    one = cache(99)
    one.turn(text(1, 1024), extra=extra)
    assert one.queue.evict_first_blocks == 16
    assert one.director.status()["requests_hinted"] == 1


@pytest.mark.parametrize("wrong", [-1, 1.5, "512", True, [512]])
def test_a_hint_that_is_no_number_of_tokens_is_counted_and_ignored(cache, wrong):
    one = cache(99)
    one.turn(text(1, 1024), extra={XARG: wrong})
    assert one.queue.evict_first_blocks == 0
    assert one.director.status()["hints"]["rejected"] == 1


def test_the_tail_counts_from_the_end_of_the_answer(cache):
    one = cache(20)
    request = one.begin(text(1, 81), extra={XARG: 34})
    one.grow(request, text(9, 47))
    one.end(request)
    # 128 tokens, four full blocks; 128 - 34 = 94 keeps three.
    assert one.queue.evict_first_blocks == 1


@pytest.fixture
def timed(cache):
    """A cache whose objectives age by hand, in seconds."""
    one, now = cache(20), [0.0]
    one.director._clock = lambda: now[0]
    return one, now


def test_the_objective_holds_for_requests_without_a_hint(cache):
    one = cache(20)
    assert one.director.set_objective(Objective(60.0, 10.0, 3))
    one.turn(text(1, 82))
    # 82 + 10 - 60 = 32: one of two full blocks stays.
    assert one.queue.evict_first_blocks == 1
    assert not one.director.set_objective(Objective(0.0, 0.0, 2)), "an older one"
    one.turn(text(2, 128), extra={XARG: 0})
    assert one.queue.evict_first_blocks == 1, "its own hint comes first"


def test_at_eviction_the_objective_of_now_decides_about_finished_turns(cache):
    one = cache(24)
    one.turn(text(1, 256), "older")
    one.turn(text(2, 256), "younger")
    one.turn(text(3, 128), extra={XARG: 32})
    running = one.begin(text(4, 128))
    for xi, marked in [(64, 2 + 2), (192, 6 + 6), (32, 1 + 1), (10_000, 8 + 8), (0, 0), (192, 6 + 6)]:
        one.director.set_objective(Objective(float(xi), 0.0))
        one.queue.invariants()
        assert one.queue.evict_first_blocks == marked + 1, "the last block of the hinted turn goes first anyway"
    one.end(running)
    assert one.queue.evict_first_blocks == 6 + 6 + 1 + 4
    # The least recently used conversation goes first, from its end.
    one.evicted(3)
    assert (one.resident(text(1, 256)), one.resident(text(2, 256))) == (160, 256)


def test_an_objective_that_is_for_information_marks_nothing(cache):
    one = cache(20)
    one.director.set_objective(Objective(64.0, 0.0, t_lru=False))
    one.turn(text(1, 128))
    assert one.queue.evict_first_blocks == 0
    one.director.set_objective(Objective(64.0, 0.0))
    assert one.queue.evict_first_blocks == 2
    one.director.set_objective(Objective(64.0, 0.0, t_lru=False))
    assert one.queue.evict_first_blocks == 0


def test_an_objective_that_is_not_renewed_leaves_lru_and_the_marks_of_hints(timed):
    one, now = timed
    one.director.set_objective(Objective(64.0, 0.0, epoch=5, ttl_ms=1000))
    one.turn(text(1, 256), "older")
    one.turn(text(2, 256), extra={XARG: 32})
    one.turn(text(1, 128) + text(3, 32), "ended")
    one.director.take_hints([hint("trim", "ended", keep_tokens=128)])
    now[0] = 0.75
    assert one.director.set_objective(Objective(64.0, 0.0, epoch=6, ttl_ms=1000)), "renewed"
    now[0] = 1.5
    assert one.director.status()["evict_first_blocks"] == 2 + 1 + 1
    now[0] = 1.75
    one.evicted(20 - 17)
    assert one.resident(text(1, 256)) == 256, "blank blocks were enough"
    assert one.queue.evict_first_blocks == 2, "it ended without a message"
    one.evicted(20 - 17 + 3)
    assert one.resident(text(1, 256)) == 224, "the oldest, from its end"
    one.turn(text(5, 64))
    assert one.queue.evict_first_blocks == 0
    assert not one.director.set_objective(Objective(64.0, 0.0, epoch=5)), "older than the one that expired"
    assert one.director.status()["objective"]["expired"]
    assert one.director.set_objective(Objective(64.0, 0.0, epoch=6))
    now[0] = 1e9
    assert one.director.status()["evict_first_blocks"] > 0, "without a time to live"


def test_what_was_evicted_first_is_counted_by_its_cause(cache):
    one = cache(8)
    one.turn(text(1, 128), extra={XARG: 64})
    one.turn(text(2, 128), "s")
    one.director.set_objective(Objective(96.0, 0.0))
    one.director.take_hints([hint("trim", "s", keep_tokens=96)])
    one.evicted(8)
    status = one.director.status()
    # A hint's is what a hint has named, whether or not the objective says the same.
    assert (status["evicted_by_hint_blocks"], status["evicted_by_xi_blocks"], status["evicted_lru_blocks"]) == (3, 2, 3)


def test_a_protected_conversation_is_left_alone_by_objectives_until_its_next_turn(cache):
    one = cache(20)
    one.director.set_objective(Objective(64.0, 0.0))
    one.turn(text(1, 128), "s")
    one.director.take_hints([hint("protect", "s")])
    one.director.set_objective(Objective(96.0, 0.0))
    assert one.queue.evict_first_blocks == 0
    one.turn(text(1, 160), "s")
    assert one.queue.evict_first_blocks == 3


def hint(kind, session=None, **more):
    return {"kind": kind, **({} if session is None else {"session_id": session}), **more}


def test_hints_from_outside_are_judged_one_by_one(cache):
    one = cache(64)
    for at, name in enumerate(["head", "body", "xargs"]):
        one.turn(text(at, 128), name)
    outcomes = one.director.take_hints(
        [
            hint("trim", "head", keep_tokens=96, epoch=7, ttl_ms=60_000),
            hint("ended", "body"),
            hint("ended", "xargs", keep_tokens=64),
            hint("trim", "head", keep_tokens=0, epoch=6),
            hint("trim", "nobody", keep_tokens=0),
            hint("ended", "body", ttl_ms=0),
            hint("shred", "body"),
            hint("trim", "head", keep_tokens=-1),
            hint("trim"),
            "trim",
        ]
    )
    assert outcomes == ["applied"] * 3 + ["stale", "unknown", "expired"] + ["rejected"] * 4
    assert one.queue.evict_first_blocks == 1 + 4 + 2
    assert one.director.status()["hints"] == {
        "applied": 3, "pending": 0, "expired": 1, "stale": 1, "unknown": 1, "rejected": 4,
    }  # fmt: skip
    one.queue.invariants()


def test_a_hint_waits_for_the_running_turn(cache):
    one = cache(64)
    one.turn(text(1, 128), "s")
    request = one.begin(text(1, 256), "s")
    assert one.director.take_hints([hint("trim", "s", keep_tokens=64)]) == ["pending"]
    one.end(request)
    assert one.queue.evict_first_blocks == 6
    assert one.director.status()["hints"]["applied"] == 1


def test_a_hint_that_waited_too_long_expires(cache):
    one = cache(64)
    now = [0.0]
    one.director._clock = lambda: now[0]
    request = one.begin(text(1, 256), "s")
    assert one.director.take_hints([hint("ended", "s", ttl_ms=1000)]) == ["pending"]
    now[0] = 1.0
    one.end(request)
    assert one.queue.evict_first_blocks == 0
    assert one.director.status()["hints"]["expired"] == 1


def test_a_waiting_hint_holds_where_vllm_frees_a_step_later(cache):
    one = cache(64)
    request = one.begin(text(1, 256), "s")
    one.director.take_hints([hint("ended", "s")])
    blocks = one.end(request, deferred=True)
    one.pool.free_blocks(reversed(blocks))
    assert one.queue.evict_first_blocks == 8


def test_hints_name_block_hashes_too(cache):
    one = cache(64)
    request = one.begin(text(1, 128))
    whole = [bytes(value) for value in request.block_hashes]
    one.end(request)
    as_events = [int.from_bytes(value[-8:], "big") for value in whole]
    assert one.director.take_hints([hint("trim", block_hashes=as_events[2:])]) == ["applied"]
    assert one.queue.evict_first_blocks == 2
    assert one.director.take_hints([hint("protect", block_hashes=[value.hex() for value in whole])]) == ["applied"]
    assert one.queue.evict_first_blocks == 0
    assert one.director.take_hints([hint("trim", block_hashes=[1]), hint("trim", block_hashes=["x"])]) == [
        "unknown",
        "rejected",
    ]


def test_protect_makes_a_conversation_the_freshest(cache):
    one = cache(8)
    one.turn(text(1, 128), "old")
    one.turn(text(2, 128), "new")
    one.director.take_hints([hint("protect", "old")])
    one.evicted(4)
    assert (one.resident(text(1, 128)), one.resident(text(2, 128))) == (128, 0)


def test_the_last_release_decides_about_shared_blocks(cache):
    one = cache(64)
    trunk = text(1, 128)
    first = one.begin(trunk + text(2, 64), extra={XARG: 10_000})
    second = one.begin(trunk + text(3, 64))
    one.end(first)
    one.end(second)
    assert one.queue.evict_first_blocks == 2, "the trunk was given back by the second, which keeps all"


def test_a_fork_keeps_the_trunk_of_a_conversation_that_ended(cache):
    one = cache(12)
    trunk = text(1, 128)
    one.turn(trunk + text(2, 64), "kept")
    one.turn(trunk + text(3, 64), "ended")
    one.director.take_hints([hint("ended", "ended")])
    assert one.queue.evict_first_blocks == 2, "the trunk waits for the branch that is kept"
    one.turn(text(4, 6 * BLOCK))
    assert one.resident(trunk + text(2, 64)) == 192


def test_a_preempted_request_marks_nothing(cache):
    one = cache(64)
    request = one.begin(text(1, 256), extra={XARG: 256})
    one.manager.free(request)
    assert one.queue.evict_first_blocks == 0


def test_blocks_that_hold_something_else_by_now_are_left_alone(cache):
    one = cache(8)
    one.turn(text(1, 256), "gone")
    one.turn(text(2, 256), "here")
    assert one.director.take_hints([hint("ended", "gone")]) == ["applied"]
    assert one.queue.evict_first_blocks == 0


def test_after_a_reset_old_hints_find_nothing(cache):
    one = cache(8)
    one.turn(text(1, 256), "s")
    assert one.manager.reset_prefix_cache()
    one.turn(text(2, 256))
    assert one.director.take_hints([hint("ended", "s")]) == ["applied"]
    assert one.queue.evict_first_blocks == 0


def test_sessions_are_bounded(cache):
    one = cache(8)
    for at in range(200):
        one.turn(text(at, 256), f"s{at}")
    assert len(one.director._sessions) <= 5


def test_an_error_within_switches_hints_off_and_requests_go_on(cache, monkeypatch):
    one = cache(8)
    monkeypatch.setattr(one.director, "_own_tail", lambda request: 1 / 0)
    assert one.turn(text(1, 256), "s") == 0
    assert one.director is None
    assert one.turn(text(1, 256), "s") == 224
