"""Puts the three bands into vLLM, or says why it does not and changes nothing.

What is changed, all of it in the engine core's process:

- the name ``FreeKVCacheBlockQueue`` in ``vllm.v1.core.block_pool`` becomes ours;
- ``KVCacheManager.__init__``, ``free``, ``pop_blocks_for_free`` and ``reset_prefix_cache``, and
  ``Scheduler.add_request``, report to a :class:`~tailroute_vllm.director.Director` around what they do;
- ``EngineCore`` gains one method, through which the API server's process asks and tells.

vLLM's own code is called, never copied. A failure inside the director is logged once and switches it off; requests
go on.
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
import os
import re
from collections.abc import Callable
from typing import Any

# Below vLLM's own logger, which is the one that is set up in its processes.
log = logging.getLogger("vllm.tailroute")

OLDEST = (0, 30)
NEWEST = (0, 32)
OVERRIDE = "TAILROUTE_VLLM_UNTESTED"
UTILITY = "tailroute"

_QUEUE_METHODS = {
    "popleft",
    "popleft_n",
    "remove",
    "append",
    "prepend_n",
    "append_n",
    "get_all_free_blocks",
    "iter_blocks_after",
}


class Unsupported(Exception):
    """This vLLM is not one that the plugin knows."""


class Patch:
    """What was replaced, to be put back."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Sets an attribute, remembering what was there."""
        missing = object()
        before = vars(owner).get(name, missing)
        setattr(owner, name, value)
        self._undo.append(lambda: delattr(owner, name) if before is missing else setattr(owner, name, before))

    def undo(self) -> None:
        """Puts everything back."""
        while self._undo:
            self._undo.pop()()


_installed: Patch | None = None


def vllm_version() -> str:
    """The version of the vLLM that would be imported."""
    import vllm

    return str(vllm.__version__)


def check() -> None:
    """Raises Unsupported if this vLLM is not as the plugin needs it."""
    version = vllm_version()
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None:
        raise Unsupported(f"cannot read the version {version!r}")
    numbers = (int(found[1]), int(found[2]))
    if numbers < OLDEST:
        raise Unsupported(f"vLLM {version} is older than {OLDEST[0]}.{OLDEST[1]}")
    if numbers > NEWEST and os.environ.get(OVERRIDE) != "1":
        raise Unsupported(
            f"vLLM {version} is newer than {NEWEST[0]}.{NEWEST[1]}, the newest one tried; {OVERRIDE}=1 loads it anyway"
        )
    _check_shape()


def _check_shape() -> None:
    try:
        from vllm.v1.core import block_pool, kv_cache_utils
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.engine.core import EngineCore
    except ImportError as error:
        raise Unsupported(f"its parts are elsewhere: {error}") from error
    queue = kv_cache_utils.FreeKVCacheBlockQueue
    methods = {name for name, value in vars(queue).items() if inspect.isfunction(value) and name[0] != "_"}
    if methods != _QUEUE_METHODS:
        raise Unsupported(f"FreeKVCacheBlockQueue has other methods: {sorted(methods ^ _QUEUE_METHODS)}")
    if getattr(block_pool, "FreeKVCacheBlockQueue", None) is None:
        raise Unsupported("BlockPool does not use FreeKVCacheBlockQueue")
    if hasattr(EngineCore, UTILITY):
        raise Unsupported(f"EngineCore has a `{UTILITY}` of its own")
    expected = {
        (KVCacheManager, "free"): ["self", "request"],
        (KVCacheManager, "pop_blocks_for_free"): ["self", "request"],
        (KVCacheManager, "reset_prefix_cache"): ["self"],
        (Scheduler, "add_request"): ["self", "request"],
    }
    for (owner, name), wanted in expected.items():
        method = getattr(owner, name, None)
        if method is None or list(inspect.signature(method).parameters) != wanted:
            raise Unsupported(f"{owner.__name__}.{name} takes other arguments")


def install() -> None:
    """Installs the bands in this process. Raises Unsupported, having changed nothing."""
    global _installed
    if _installed is not None:
        return
    check()
    from vllm.v1.core import block_pool
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.core import EngineCore

    from .bands import BandedFreeQueue

    patch = Patch()
    patch.set(block_pool, "FreeKVCacheBlockQueue", BandedFreeQueue)
    patch.set(KVCacheManager, "__init__", _managed(KVCacheManager.__init__))
    patch.set(KVCacheManager, "free", _released(KVCacheManager.free))
    patch.set(KVCacheManager, "pop_blocks_for_free", _released(KVCacheManager.pop_blocks_for_free))
    patch.set(KVCacheManager, "reset_prefix_cache", _reset(KVCacheManager.reset_prefix_cache))
    patch.set(Scheduler, "add_request", _added(Scheduler.add_request))
    patch.set(EngineCore, UTILITY, answer)
    _installed = patch
    log.info("tailroute: three-band eviction is in place (vLLM %s)", vllm_version())


def uninstall() -> None:
    """Puts vLLM back as it was; pools made in between keep their queues."""
    global _installed
    if _installed is not None:
        _installed.undo()
        _installed = None


def is_installed() -> bool:
    """Whether this process has the bands."""
    return _installed is not None


def _managed(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        from .bands import BandedFreeQueue
        from .director import Director

        original(self, *args, **kwargs)
        self.tailroute = None
        if self.enable_caching and isinstance(self.block_pool.free_block_queue, BandedFreeQueue):
            self.tailroute = Director(self.block_pool, self.coordinator.single_type_managers)

    return init


def _released(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def free(self: Any, request: Any) -> Any:
        _tell(self, lambda director: director.releasing(request, request.is_finished()))
        result = original(self, request)
        if request.is_finished():
            _tell(self, lambda director: director.released(request))
        return result

    return free


def _reset(original: Callable[..., bool]) -> Callable[..., bool]:
    @functools.wraps(original)
    def reset_prefix_cache(self: Any) -> bool:
        done = original(self)
        if done:
            _tell(self, lambda director: director.cleared())
        return done

    return reset_prefix_cache


def _added(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def add_request(self: Any, request: Any) -> None:
        new = request.request_id not in self.requests
        original(self, request)
        if new:
            _tell(self.kv_cache_manager, lambda director: director.arrived(request))

    return add_request


def _tell(manager: Any, what: Callable[[Any], None]) -> None:
    director = getattr(manager, "tailroute", None)
    if director is None:
        return
    try:
        what(director)
    except Exception:
        log.exception("tailroute: hints are switched off after an error; requests go on")
        manager.tailroute = None


def answer(self: Any, message: str) -> str:
    """The engine core's end of the wire: JSON in, JSON out."""
    from .director import Objective

    director = getattr(getattr(self.scheduler, "kv_cache_manager", None), "tailroute", None)
    if director is None:
        return json.dumps({"available": False})
    asked = json.loads(message)
    said: dict[str, Any] = {"available": True}
    if "hints" in asked:
        said["outcomes"] = director.take_hints(asked["hints"])
    if "objective" in asked:
        said["applied"] = director.set_objective(Objective.of(asked["objective"]))
    said["status"] = director.status()
    return json.dumps(said)
