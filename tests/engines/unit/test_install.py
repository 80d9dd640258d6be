"""On a vLLM that it does not know the plugin changes nothing and says why."""

import json
import logging

import pytest
import vllm
from tailroute_vllm import install, register
from vllm.v1.core import block_pool
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.core import EngineCore


def is_stock() -> bool:
    methods = [KVCacheManager.free, KVCacheManager.__init__, Scheduler.add_request]
    return (
        block_pool.FreeKVCacheBlockQueue is FreeKVCacheBlockQueue
        and not any(hasattr(method, "__wrapped__") for method in methods)
        and not hasattr(EngineCore, install.UTILITY)
    )


@pytest.mark.parametrize(
    ("version", "said"),
    [("0.29.4", "older than 0.30"), ("0.99.0", "newer than 0.32"), ("1.0", "newer"), ("dev", "cannot read")],
)
def test_an_unsupported_version_stays_stock(monkeypatch, caplog, version, said):
    monkeypatch.setattr(vllm, "__version__", version)
    monkeypatch.setattr(install.log, "propagate", True)
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    with caplog.at_level(logging.ERROR):
        register()
    assert said in caplog.text and "not loaded" in caplog.text
    assert is_stock() and not install.is_installed()


def test_a_newer_version_can_be_tried_on_purpose(monkeypatch):
    monkeypatch.setattr(vllm, "__version__", "0.33.0")
    monkeypatch.setenv(install.OVERRIDE, "1")
    install.install()
    try:
        assert not is_stock()
    finally:
        install.uninstall()
    assert is_stock()


def test_another_shape_stays_stock(monkeypatch):
    monkeypatch.setattr(FreeKVCacheBlockQueue, "rotate", lambda self: None, raising=False)
    with pytest.raises(install.Unsupported, match="rotate"):
        install.install()
    monkeypatch.undo()
    monkeypatch.setattr(KVCacheManager, "free", lambda self, request, now: None)
    with pytest.raises(install.Unsupported, match="KVCacheManager.free"):
        install.install()
    monkeypatch.undo()
    assert is_stock()


def test_installing_twice_is_once(plugin):
    free = KVCacheManager.free
    plugin.install()
    assert KVCacheManager.free is free
    plugin.uninstall()
    assert is_stock()


def test_the_engine_core_answers_in_json(cache):
    one = cache(8)

    class Core:
        class scheduler:
            kv_cache_manager = one.manager

    said = json.loads(EngineCore.tailroute(Core, json.dumps({"objective": {"xi_tokens": 1, "next_prompt_tokens": 2}})))
    assert said["applied"] and said["status"]["objective"]["xi_tokens"] == 1.0
    one.manager.tailroute = None
    assert json.loads(EngineCore.tailroute(Core, "{}")) == {"available": False}
