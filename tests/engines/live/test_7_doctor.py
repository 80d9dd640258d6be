"""`tailroute doctor` on real engines: a missing flag is named, and an engine that has all of them raises no alarm."""

from __future__ import annotations

import json
import signal
import subprocess
from contextlib import contextmanager

from processes import BLOCK, ROUTER, Engine, Router, free_port
from sglang_server import Sglang
from talk import complete, ids

# Turns after which the objective of a usual prompt is judged, and an objective that slow machines meet.
TURNS = 20
OBJECTIVE_MS = 60_000.0


def findings(engine: Engine | Sglang) -> dict[str, str]:
    """What doctor finds besides plain `ok`, by check: the status, and a word of what to do."""
    with Router(f"doctor-{engine.name}", [engine], learn_costs=True, objective_ms=OBJECTIVE_MS) as router:
        for turn in range(TURNS):
            complete(router.url, ids(1100 + turn % 4, BLOCK * (1 + turn // 4)), f"doctor-{turn % 4}")
        command = [str(ROUTER), "doctor", "--admin", router.admin, "--url", router.url, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 1), done.stderr
    read = json.loads(done.stdout)["findings"]
    assert len(read) == 19
    print(engine.name, *(f"  {found}" for found in read if found["status"] != "ok" or found["action"]), sep="\n")
    other = {found["check"]: found for found in read if found["status"] != "ok" or found["action"]}
    # A random model may end its answer before a buffer would show.
    assert other.pop("streams", {"status": "unknown"})["status"] == "unknown"
    assert done.returncode == any(found["status"] == "problem" for found in other.values())
    return {check: f"{found['status']}: {found['action']}" for check, found in other.items()}


def expect(found: dict[str, str], wanted: dict[str, tuple[str, str]]) -> None:
    """Each check has this status and names this flag, and there is no other finding."""
    assert found.keys() == wanted.keys(), found
    for check, (status, flag) in wanted.items():
        assert found[check].startswith(f"{status}: "), found[check]
        assert flag in found[check], found[check]


@contextmanager
def running(engine: Engine | Sglang):
    try:
        yield engine
    finally:
        # It has nothing to save, and an orderly end takes seconds.
        engine.process.end(signal.SIGKILL)


def test_a_vllm_with_every_flag_is_healthy(fresh):
    expect(findings(fresh), {})


def test_a_vllm_without_plugin_and_flags_is_told_each_of_them():
    flags = ["--no-enable-prefix-caching", "--no-enable-prompt-tokens-details", "--kv-events-config", "{}"]
    with running(Engine("vllm-bare", plugin=False, times=False, more=flags)) as engine:
        expect(
            findings(engine),
            {
                "prefix caching": ("problem", "--enable-prefix-caching"),
                "cached tokens": ("warning", "--enable-prompt-tokens-details"),
                "cache events": ("ok", "--kv-events-config"),
                "hints": ("warning", "pip install ./deploy/engines/vllm"),
            },
        )


def test_a_vllm_whose_events_and_reports_do_not_arrive():
    # Without `*` in its endpoint vLLM connects there instead of listening.
    events = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://127.0.0.1:{free_port()}", "topic": "kv"}
    flags = ["--no-enable-prompt-tokens-details", "--kv-events-config", json.dumps(events)]
    with running(Engine("vllm-silent", more=flags)) as engine:
        expect(
            findings(engine),
            {
                "cached tokens": ("warning", "--enable-prompt-tokens-details"),
                "cache events": ("problem", "tcp://*:5557"),
            },
        )


def test_an_sglang_with_every_flag_is_healthy(sglang):
    none = ("ok", "--kv-events-config")
    expect(findings(sglang), {} if sglang.has_events else {"cache events": none})


def test_an_sglang_without_plugin_and_flags_is_told_each_of_them():
    with running(Sglang("sglang-bare", stock=["--disable-radix-cache"])) as engine:
        expect(
            findings(engine),
            {
                "prefix caching": ("problem", "--disable-radix-cache"),
                "cached tokens": ("warning", "--enable-cache-report"),
                "cache events": ("ok", "--kv-events-config"),
                "hints": ("warning", "pip install ./deploy/engines/sglang"),
                "sharing": ("unknown", "--enable-metrics"),
            },
        )
