"""Makes the budget of SGLang's own Tail-Optimized LRU settable at run time.

SGLang 0.5.21 and later evict by T-LRU with ``--radix-eviction-policy tlru``, whose threshold and next-prompt estimate
are read once, when the server starts. This plugin adds four keys to ``POST /set_internal_state``::

    {"server_args": {"tlru_threshold": 4000, "tlru_next_prompt_estimate": 200, "tlru_ttl_ms": 30000, "tlru_epoch": 3}}

Without another set within ``tlru_ttl_ms`` the strategy is plain LRU; without that key the budget stays. A set with an
older ``tlru_epoch`` than the newest one is rejected. ``GET /server_info`` says that the plugin is there, and what is in
force::

    "internal_states": [{"tailroute": {
        "tlru_settable": true, "tlru_ttl_settable": true, "tlru_threshold": 4000, "tlru_next_prompt_estimate": 200,
        "tlru_epoch": 3, "tlru_age_s": 1.5, "tlru_expired": false}}]

It hooks two methods of the scheduler's state controller and one of the eviction strategy through SGLang's own plugin
registry, and changes two numbers of the strategy that the radix tree asks at each eviction. The tree's Rust core copies
the budget when it is built and never looks again, so the Python core is needed
(``SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND=python``); without it, or under another policy, the keys are rejected as
SGLang rejects any key that it cannot set.

A threshold at or below the estimate frees nothing, which is plain LRU. SGLang refuses that at the start as a likely
mistake; at run time it is how a load gate closes, so it is taken, and it is what a budget becomes that has expired.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

log = logging.getLogger(__name__)

CONTROLLER = "sglang.srt.managers.scheduler_components.internal_state.SchedulerInternalStateController"
STRATEGY = "sglang.srt.mem_cache.evict_policy.TLRUStrategy"
# What can be set of the strategy, and the attribute that it is there.
NUMBERS = {"tlru_threshold": "threshold", "tlru_next_prompt_estimate": "next_prompt_estimate"}
LARGEST = 1 << 40
# All keys: what each must be, from and to where.
KEYS = {
    **dict.fromkeys(NUMBERS, ("a number of tokens", 0, LARGEST)),
    "tlru_ttl_ms": ("a number of milliseconds", 0.001, LARGEST),
    "tlru_epoch": ("a number", 0, (1 << 63) - 1),
}
# Of the strategy: when it was set, and by which epoch.
SETTING = "tailroute"
clock = time.monotonic


@dataclass
class Setting:
    """The last set of a strategy's budget."""

    epoch: int | None
    came: float
    # In seconds of the clock; None: never, or it has.
    expires: float | None
    expired: bool = False


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
    missing += [name for name in NUMBERS.values() if name not in vars(TLRUStrategy())]
    if missing:
        log.error("tailroute: not loaded, this SGLang has no %s", ", ".join(missing))
        return
    HookRegistry.register(f"{CONTROLLER}._update_handlers", add_handlers, HookType.AFTER)
    HookRegistry.register(f"{CONTROLLER}.get_internal_state", add_readback, HookType.AFTER)
    HookRegistry.register(f"{STRATEGY}.get_priority", expire, HookType.BEFORE)


def add_handlers(handlers: dict[str, Any], controller: Any) -> dict[str, Any]:
    """After ``_update_handlers``, called for each set: four keys more. All are validated before any is applied."""
    from sglang.srt.managers.scheduler_components.internal_state import UpdateRejected, _UpdateHandler

    found = strategy(controller.scheduler)
    given: dict[str, Any] = {}

    def validate(key: str, value: Any) -> None:
        if found is None:
            raise UpdateRejected(f"{key} needs --radix-eviction-policy tlru and the Python core of the radix tree.")
        what, least, most = KEYS[key]
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not least <= value <= most:
            raise UpdateRejected(f"{key} must be {what} from {least} to {most}, got {value}.")
        newest = newest_epoch(found)
        if key == "tlru_epoch" and newest is not None and value < newest:
            raise UpdateRejected(f"{key} {value} is older than {newest}.")
        given[key] = value

    def apply(key: str, value: Any) -> None:
        # No server argument of that name exists, so nothing is returned for the configuration's record.
        if key == next(iter(given)):
            take(found, given)

    return {**handlers, **{key: _UpdateHandler(validate, apply) for key in KEYS}}


def take(found: Any, given: dict[str, Any]) -> None:
    """Sets what was given of a strategy's budget; the rest stays, but a time to live is given each time."""
    for key, name in NUMBERS.items():
        if key in given:
            setattr(found, name, int(given[key]))
    now, ttl_ms = clock(), given.get("tlru_ttl_ms")
    epoch = int(given["tlru_epoch"]) if "tlru_epoch" in given else newest_epoch(found)
    setattr(found, SETTING, Setting(epoch, now, None if ttl_ms is None else now + ttl_ms / 1e3))


def expire(found: Any, *_: Any) -> None:
    """Before ``get_priority``: a budget whose time is over frees nothing any more."""
    setting = getattr(found, SETTING, None)
    if setting is not None and setting.expires is not None and clock() >= setting.expires:
        found.threshold, setting.expires, setting.expired = 0, None, True


def newest_epoch(found: Any) -> int | None:
    """The newest epoch by which a strategy was set."""
    setting = getattr(found, SETTING, None)
    return None if setting is None else setting.epoch


def add_readback(output: Any, controller: Any, *_: Any) -> Any:
    """After ``get_internal_state``: whether the budget can be set, and what it is."""
    found = strategy(controller.scheduler)
    if found is not None:
        expire(found)
        setting = getattr(found, SETTING, None)
        output.internal_state["tailroute"] = {
            "tlru_settable": True,
            "tlru_ttl_settable": True,
            **{key: getattr(found, name) for key, name in NUMBERS.items()},
            "tlru_epoch": newest_epoch(found),
            "tlru_age_s": None if setting is None else clock() - setting.came,
            "tlru_expired": setting is not None and setting.expired,
        }
    return output


def strategy(scheduler: Any) -> Any:
    """The T-LRU strategy that the scheduler's tree asks; None if there is none, or it is out of reach in Rust."""
    from sglang.srt.mem_cache.evict_policy import TLRUStrategy

    core = getattr(getattr(scheduler, "tree_cache", None), "tree_core", None)
    found = getattr(core, "eviction_strategy", None)
    return found if isinstance(found, TLRUStrategy) else None
