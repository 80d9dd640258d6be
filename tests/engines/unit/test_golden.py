"""vLLM's own cache manager with the plugin evicts the blocks of tests/vectors/t_lru.json, in its order."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import BLOCK, text
from tailroute_vllm.director import Objective

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "t_lru.json").read_text())


@pytest.mark.parametrize("case", VECTORS["cases"])
def test_evictions_are_those_of_t_lru(cache, case, monkeypatch):
    assert VECTORS["block_tokens"] == BLOCK
    one, names, gone = cache(case["capacity_blocks"]), {}, []
    evict = one.pool._maybe_evict_cached_block

    def recorded(block):
        if block.block_hash is not None:
            gone.append(names[bytes(block.block_hash)[: len(next(iter(names)))]])
        return evict(block)

    monkeypatch.setattr(one.pool, "_maybe_evict_cached_block", recorded)
    one.director.set_objective(Objective(float(case["xi_tokens"]), float(case["next_prompt_tokens"])))
    for (conversation, blocks), evicted in zip(case["turns"], case["evicted"], strict=True):
        gone.clear()
        request = one.begin(text(conversation, blocks * BLOCK))
        names.update({bytes(name): [conversation, at] for at, name in enumerate(request.block_hashes)})
        one.end(request)
        assert gone == evicted


def test_the_vectors_are_those_of_the_naive_model():
    written = Path(__file__).parents[2] / "vectors" / "t_lru.json"
    done = subprocess.run([sys.executable, written.with_suffix(".py")], capture_output=True, text=True, check=True)
    assert done.stdout == written.read_text()
