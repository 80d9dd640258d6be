"""Makes the budget of SGLang's own Tail-Optimized LRU settable at run time.

SGLang 0.5.21 and later evict by T-LRU with ``--radix-eviction-policy tlru``, whose threshold and next-prompt estimate
are read once, when the server starts. This plugin adds two keys to ``POST /set_internal_state``::

    {"server_args": {"tlru_threshold": 4000, "tlru_next_prompt_estimate": 200}}

and says in ``GET /server_info`` that it is there, and what is in force::

    "internal_states": [{"tailroute": {"tlru_settable": true, "tlru_threshold": 4000, "tlru_next_prompt_estimate": 200}}]

It hooks two methods of the scheduler's state controller through SGLang's own plugin registry, and changes two numbers
of the eviction strategy that the radix tree asks at each eviction. The tree's Rust core copies the budget when it is
built and never looks again, so the Python core is needed (``SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND=python``); without
it, or under another policy, the keys are rejected as SGLang rejects any key that it cannot set.

A threshold at or below the estimate frees nothing, which is plain LRU. SGLang refuses that at the start as a likely
mistake; at run time it is how a load gate closes, so it is taken.
"""

from __future__ import annotations

import logging
import math
from typing import Any

log = logging.getLogger(__name__)

CONTROLLER = "sglang.srt.managers.scheduler_components.internal_state.SchedulerInternalStateController"
# What can be set, and the attribute of the strategy that it sets.
KEYS = {"tlru_threshold": "threshold", "tlru_next_prompt_estimate": "next_prompt_estimate"}
LARGEST = 1 << 40


def register() -> None:
    """Entry point ``sglang.srt.plugins``: called by SGLang in each of its processes."""
    try:
        from sglang.srt.managers.scheduler_components import internal_state
        from sglang.srt.mem_cache.evict_policy import TLRUStrategy
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    except ImportError as error:
        log.error("tailroute: not loaded, the budget stays as it was started: %s", error)
        return
    controller = getattr(internal_state, "SchedulerInternalStateController", None)
    missing = [name for name in ("_update_handlers", "get_internal_state") if not hasattr(controller, name)]
    missing += [name for name in ("_UpdateHandler", "UpdateRejected") if not hasattr(internal_state, name)]
    missing += [name for name in KEYS.values() if name not in vars(TLRUStrategy())]
    if missing:
        log.error("tailroute: not loaded, this SGLang has no %s", ", ".join(missing))
        return
    HookRegistry.register(f"{CONTROLLER}._update_handlers", add_handlers, HookType.AFTER)
    HookRegistry.register(f"{CONTROLLER}.get_internal_state", add_readback, HookType.AFTER)


def add_handlers(handlers: dict[str, Any], controller: Any) -> dict[str, Any]:
    """After ``_update_handlers``: two keys more."""
    from sglang.srt.managers.scheduler_components.internal_state import UpdateRejected, _UpdateHandler

    def validate(key: str, value: Any) -> None:
        if strategy(controller.scheduler) is None:
            raise UpdateRejected(f"{key} needs --radix-eviction-policy tlru and the Python core of the radix tree.")
        whole = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not whole or not 0 <= value <= LARGEST:
            raise UpdateRejected(f"{key} must be a number of tokens from 0 to {LARGEST}, got {value}.")

    def apply(key: str, value: Any) -> None:
        # No server argument of that name exists, so nothing is returned for the configuration's record.
        setattr(strategy(controller.scheduler), KEYS[key], int(value))

    return {**handlers, **{key: _UpdateHandler(validate, apply) for key in KEYS}}


def add_readback(output: Any, controller: Any, *_: Any) -> Any:
    """After ``get_internal_state``: whether the budget can be set, and what it is."""
    found = strategy(controller.scheduler)
    if found is not None:
        output.internal_state["tailroute"] = {"tlru_settable": True} | {
            key: getattr(found, name) for key, name in KEYS.items()
        }
    return output


def strategy(scheduler: Any) -> Any:
    """The T-LRU strategy that the scheduler's tree asks; None if there is none, or it is out of reach in Rust."""
    from sglang.srt.mem_cache.evict_policy import TLRUStrategy

    core = getattr(getattr(scheduler, "tree_cache", None), "tree_core", None)
    found = getattr(core, "eviction_strategy", None)
    return found if isinstance(found, TLRUStrategy) else None
