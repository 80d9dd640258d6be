"""What hints change in a real vLLM: the 99-block experiment, directly and through the router, and out of band."""

import pytest
from conftest import no_objective
from events import Listener
from processes import BLOCK, Router, http, until
from talk import complete, ids

# In tokens: A is older than B; then C needs room.
A, B, C = 1024, 1024, 1600
TAIL = 512


def next_turn(url, seed):
    """Cached tokens of A's next turn, which is a little longer."""
    return complete(url, ids(seed, A) + ids(seed + 500, 8), "A").cached


def conversations(seed):
    return ids(seed, A), ids(seed + 1, B), ids(seed + 2, C)


def test_unhinted_the_older_conversation_pays(fresh):
    a, b, c = conversations(10)
    complete(fresh.url, a, "A")
    complete(fresh.url, b, "B")
    complete(fresh.url, c, "C")
    assert next_turn(fresh.url, 10) == 544


@pytest.mark.parametrize("field", ["vllm_xargs", "kv_transfer_params"])
def test_hinted_it_keeps_everything(fresh, field):
    a, b, c = conversations(20)
    complete(fresh.url, a, "A")
    complete(fresh.url, b, "B", **{field: {"tailroute_evict_first_tokens": TAIL}})
    complete(fresh.url, c, "C")
    assert next_turn(fresh.url, 20) == 1024


def test_what_goes_is_exactly_what_was_said(fresh):
    listener = Listener(fresh)
    a, b, c = conversations(30)
    complete(fresh.url, ids(29, 64), "warm")
    listener.has_stored("warm", 2)
    complete(fresh.url, a, "A")
    complete(fresh.url, b, "B", vllm_xargs={"tailroute_evict_first_tokens": TAIL})
    complete(fresh.url, c, "C")
    of_b = listener.has_stored("B", B // BLOCK)
    listener.has_stored("C", C // BLOCK)
    # 99 blocks less 2, 32 and 32 leave 33 blank ones for C's 50. Of B's 1025 tokens, one of them its answer, 513 are
    # kept, rounded up to 17 blocks; the other 15 go first, last one first, and then the least recently used.
    tail = of_b[-(-(B + 1 - TAIL) // BLOCK) :]
    assert len(tail) == 15
    assert listener.removed == tail[::-1] + listener.of("warm")[::-1]
    listener.close()


def test_through_the_router_unhinted_and_hinted(fresh):
    kept = {}
    for hinted in (False, True):
        fresh.reset_cache()
        seed = 40 + 10 * hinted
        a, b, c = conversations(seed)
        with Router(f"told-{hinted}", [fresh], rule="queue-aware" if hinted else "off") as router:
            complete(router.url, a, "A")
            complete(router.url, b, "B", last=True)
            complete(router.url, c, "C")
            kept[hinted] = next_turn(router.url, seed)
        # The objective that the router told the engine holds for requests without a hint.
        no_objective(fresh)
    print("cached tokens of A's next turn through the router, unhinted and hinted:", kept)
    assert kept[False] < 600
    assert kept[True] == 1024


def test_the_router_makes_room_just_in_time(fresh):
    applied = lambda: fresh.metric("tailroute:hints_total", outcome="applied")  # noqa: E731
    marked = lambda: fresh.metric("tailroute:evict_first_blocks")  # noqa: E731
    before = applied()
    with Router("beside", [fresh]) as router:
        for at in range(5):
            complete(router.url, ids(600 + at, 512), f"beside-{at}")
        # 5 × 17 of 99 blocks: there is room for what a turn may bring, which counts as an eighth of the cache here.
        assert (applied(), marked()) == (before, 0)
        complete(router.url, ids(605, 512), "beside-5")
        until("ends to be given up", lambda: applied() > before and marked() > 0)
        told = http.get(f"{router.admin}/admin/v1/slo", timeout=30).json()["given_up"]
    print(f"{marked():.0f} blocks may go first, by {len(told)} hints: {told[0]}")
    # Enough for two such turns, and no more than an end beyond that.
    assert 99 / 4 - 2 <= marked() + 99 - 6 * 17 + 17 <= 99 / 2


def test_a_conversation_that_its_client_ends_may_go_first_as_a_whole(fresh):
    marked = lambda: fresh.metric("tailroute:evict_first_blocks")  # noqa: E731
    with Router("ended", [fresh]) as router:
        complete(router.url, ids(65, 1024), "goes-on")
        complete(router.url, ids(66, 1024), "over", last=True)
        until(lambda: f"32 blocks to go first, it has {marked():.0f}; see {router.process.log}", lambda: marked() == 32)


def test_a_hint_by_block_hash_marks_those_blocks(fresh):
    listener = Listener(fresh)
    complete(fresh.url, ids(69, 64), "warm")
    listener.has_stored("warm", 2)
    complete(fresh.url, ids(70, 256), "by-hash")
    hashes = listener.has_stored("by-hash", 8)
    hints = {"hints": [{"kind": "trim", "block_hashes": hashes[5:]}]}
    answer = http.post(f"{fresh.url}/v1/tailroute/hints", json=hints, timeout=30).json()
    assert answer["applied"] == 1
    assert fresh.metric("tailroute:evict_first_blocks") == 3
    listener.close()


def test_the_capability_document_and_its_refusals(engine):
    says = http.get(f"{engine.url}/v1/tailroute", timeout=30).json()
    assert (says["engine"], says["block_size"], says["capacity_tokens"]) == ("vllm", BLOCK, engine.capacity_tokens)
    assert http.post(f"{engine.url}/v1/tailroute/hints", content=b"{", timeout=30).status_code == 400
