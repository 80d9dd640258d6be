"""A real vLLM cache manager without a server: what is below the scheduler, fed by hand."""

from __future__ import annotations

import itertools
import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import pytest
import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request, RequestStatus

from tailroute_vllm import install

BLOCK = 32


class Cache:
    """One cache manager: requests come, grow and go."""

    def __init__(self, blocks: int) -> None:
        init_none_hash(sha256)
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
        config = KVCacheConfig(
            num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        )
        self.manager = KVCacheManager(
            config,
            max_model_len=1 << 16,
            scheduler_block_size=BLOCK,
            hash_block_size=BLOCK,
            enable_caching=True,
        )
        self.pool = self.manager.block_pool
        self.queue = self.pool.free_block_queue
        self._hasher = get_request_block_hasher(BLOCK, sha256)
        self._names = itertools.count()

    @property
    def director(self):
        return getattr(self.manager, "tailroute", None)

    def begin(self, tokens, session=None, extra=None) -> Request | None:
        """A prompt arrives and is computed. None if there is no room."""
        request = Request(
            request_id=str(next(self._names)),
            prompt_token_ids=list(tokens),
            sampling_params=SamplingParams(max_tokens=100_000, extra_args=extra),
            pooling_params=None,
            session_id=session,
            block_hasher=self._hasher,
        )
        found, cached, _ = self.manager.get_computed_blocks(request)
        request.cached = cached
        if self.manager.allocate_slots(request, request.num_tokens - cached, cached, found) is None:
            return None
        request.num_computed_tokens = request.num_tokens
        if self.director is not None:
            self.director.arrived(request)
        return request

    def grow(self, request: Request, tokens) -> bool:
        """The answer, one token after the other; a token's cache is filled when the next one is computed."""
        for token in tokens:
            request.append_output_token_ids(token)
            if self.manager.allocate_slots(request, 1) is None:
                return False
            request.num_computed_tokens += 1
        return True

    def end(self, request: Request, status=RequestStatus.FINISHED_STOPPED, deferred: bool = False) -> list:
        """The request is over. Deferred, its blocks are returned for the caller to free."""
        request.status = status
        if deferred:
            return self.manager.pop_blocks_for_free(request)
        self.manager.free(request)
        return []

    def turn(self, tokens, session=None, extra=None) -> int:
        """One whole turn. Returns its cached tokens."""
        request = self.begin(tokens, session, extra)
        assert request is not None, "no room"
        self.end(request)
        return request.cached

    def resident(self, tokens) -> int:
        """Tokens of a prompt that a hit would find, touching nothing."""
        request = Request("probe", list(tokens), SamplingParams(max_tokens=1), None, block_hasher=self._hasher)
        blocks = 0
        for value in request.block_hashes:
            if self.pool.get_cached_block(value, [0]) is None:
                break
            blocks += 1
        return blocks * BLOCK

    def evicted(self, blocks: int) -> None:
        """Makes room by allocating and giving back blank blocks."""
        self.pool.free_blocks(self.pool.get_new_blocks(blocks))


@pytest.fixture
def plugin():
    """The plugin in place, for the length of a test."""
    install.install()
    yield install
    install.uninstall()


@pytest.fixture
def cache(plugin):
    """Makes caches with the plugin in place; blocks are without the null block."""
    return lambda blocks: Cache(blocks + 1)


def text(name: int, tokens: int) -> list[int]:
    """A conversation's tokens: its own from the first on."""
    return [name * 100_000 + at for at in range(tokens)]
