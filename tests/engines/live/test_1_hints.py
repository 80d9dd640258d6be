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
        # B is told to keep 512 of its 1024; nobody speaks about A.
        with Router(f"quiet-{hinted}", [fresh], hints=False) as quiet:
            complete(quiet.url, a, "A")
            with Router(f"told-{hinted}", [fresh], hints=hinted, tail=TAIL) as told:
                complete(told.url, b, "B")
                complete(told.url, c, "C")
            kept[hinted] = next_turn(quiet.url, seed)
        # The objective that the router told the engine holds for requests without a hint.
        no_objective(fresh)
    print("cached tokens of A's next turn through the router, unhinted and hinted:", kept)
    assert kept[False] < 600
    assert kept[True] == 1024


def test_out_of_band_hints_from_the_router_reach_the_engine(fresh):
    before = fresh.metric("tailroute:hints_total", outcome="applied")
    marked = fresh.metric("tailroute:evict_first_blocks")
    assert marked == 0
    with Router("beside", [fresh], in_request=False, tail=TAIL) as router:
        complete(router.url, ids(60, 1024), "beside")
        until(
            "the trim to be applied",
            lambda: fresh.metric("tailroute:hints_total", outcome="applied") > before,
        )
    # Of 1025 tokens, one of them the answer, 513 are kept, rounded up to 17 of 32 blocks.
    assert fresh.metric("tailroute:evict_first_blocks") == 15


def test_a_conversation_that_its_client_ends_may_go_first_as_a_whole(fresh):
    marked = lambda: fresh.metric("tailroute:evict_first_blocks")  # noqa: E731
    with Router("ended", [fresh], tail=TAIL) as router:
        complete(router.url, ids(65, 1024), "goes-on")
        complete(router.url, ids(66, 1024), "over", last=True)
        # 15 blocks of the one that goes on, as above, and all 32 of the other.
        until(lambda: f"15 + 32 blocks to go first, it has {marked():.0f}; see {router.process.log}", lambda: marked() == 47)


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
