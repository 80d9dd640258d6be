"""The in-request half without patching: a KV connector that moves nothing and only says what may go first.

vLLM tells a connector about each finished request just before it takes the blocks back, and hands it the block pool.
That is enough to give the pool a banded queue and to say which of the blocks belong in the evict-first band. There is
no way in from outside, so hints about other conversations and the objective need the plugin.

    --kv-transfer-config '{"kv_connector":"TailrouteConnector","kv_role":"kv_both",
      "kv_connector_module_path":"tailroute_vllm.connector"}'
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)

from . import install
from .bands import BandedFreeQueue
from .director import Director


class Nothing(KVConnectorMetadata):
    """What the scheduler's side tells the worker's."""


class TailrouteConnector(KVConnectorBase_V1, SupportsHMA):
    """Loads nothing and saves nothing; on the scheduler's side it judges the blocks of finished requests."""

    _director: Director | None = None

    # The scheduler's side.

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """Gives the block pool its bands, unless the plugin has or this vLLM is not known."""
        super().bind_kv_cache_manager(kv_cache_manager)
        if getattr(kv_cache_manager, "tailroute", None) is not None:
            return
        try:
            install.check()
        except install.Unsupported as reason:
            install.log.error("tailroute: the connector stays idle: %s", reason)
            return
        pool = kv_cache_manager.block_pool
        pool.free_block_queue = BandedFreeQueue.adopt(pool.free_block_queue, pool.blocks)
        self._director = Director(pool, kv_cache_manager.coordinator.single_type_managers)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """Nothing is held elsewhere."""
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Nothing to do."""

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """Nothing to say."""
        return Nothing()

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Judges the request's blocks; they are freed at once, as without a connector."""
        if self._director is not None:
            self._director.releasing(request, finished=True)
            self._director.released(request)
        return False, None

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """The same for models with several groups of layers."""
        return self.request_finished(request, [])

    # The worker's side.

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Nothing to load."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing to wait for."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing to save."""

    def wait_for_save(self) -> None:
        """Nothing to wait for."""
