"""SGLang servers on the tiny model, without a GPU."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

from processes import BLOCK, HOME, MODEL, START_S, Process, answers_health, free_port, http, metric, until

STAND_IN = Path(__file__).parent.parent / "sglang" / "stand_in"
# SGLang compiles the hashes of its cache events when it makes the first.
COMPILED = [Path("/usr/include/openssl/sha.h"), Path(sysconfig.get_path("include")) / "Python.h"]


class Sglang:
    """One SGLang server that runs its own Tail-Optimized LRU, with the plugin; with `stock`, only those flags."""

    block = BLOCK
    has_events = shutil.which("c++") is not None and all(file.exists() for file in COMPILED)

    def __init__(self, name: str, capacity_tokens: int = 3200, stock: list[str] | None = None) -> None:
        self.name, self.capacity_tokens = name, capacity_tokens
        self.dialect = "sglang (settable)" if stock is None else "none"
        self.port, self.events, self.replay = free_port(), free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        python = HOME / "vllm-0.32.0/bin/python"
        env = {
            "PATH": f"{python.parent}:{os.environ['PATH']}",
            "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0",
            "SGLANG_USE_CPU_ENGINE": "1",
            "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "python",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
            "PYTHONPATH": f"{STAND_IN}:{HOME / 'sglang-0.5.23'}",
        }
        events = {
            "publisher": "zmq",
            "endpoint": f"tcp://*:{self.events}",
            "replay_endpoint": f"tcp://*:{self.replay}",
            "topic": "kv",
        }
        flags = f"""--served-model-name {MODEL} --host 127.0.0.1 --port {self.port} --device cpu --dtype float32
            --attention-backend torch_native --disable-overlap-schedule --max-total-tokens {capacity_tokens}
            --page-size {BLOCK} --skip-server-warmup""".split()
        if stock is None:
            flags += ["--radix-eviction-policy", "tlru", "--enable-cache-report", "--enable-metrics"]
            flags += ["--radix-eviction-policy-config", json.dumps({"threshold": 4000, "next_prompt_estimate": 200})]
            if self.has_events:
                flags += ["--kv-events-config", json.dumps(events)]
        else:
            env["SGLANG_PLUGINS"] = "none"
            flags += stock
        command = [str(python), "-m", "sglang.launch_server", "--model-path", str(HOME / "model-1"), *flags]
        started = time.monotonic()
        self.process = Process(name, command, env)
        until(f"{name} to start", lambda: answers_health(self), START_S, 0.25)
        print(f"{name}: started in {time.monotonic() - started:.0f} s", file=sys.stderr)

    def stop(self) -> None:
        self.process.end(signal.SIGTERM)

    def metric(self, name: str, **labels: str) -> float:
        return metric(f"{self.url}/metrics", name, **labels)

    def reset_cache(self) -> None:
        """Forgets the prefix cache, which it does only once nothing runs: a stream's end reaches it after its client."""
        until("the cache to be flushed", lambda: http.post(f"{self.url}/flush_cache", timeout=30).is_success, 30, 0.25)

    def budget(self) -> dict[str, Any]:
        """What its plugin says is in force."""
        info = http.get(f"{self.url}/server_info", timeout=30).json()
        return info["internal_states"][0]["tailroute"]

    def set_budget(self, threshold: int, estimate: int) -> None:
        """What a router would tell it."""
        given = {"server_args": {"tlru_threshold": threshold, "tlru_next_prompt_estimate": estimate}}
        http.post(f"{self.url}/set_internal_state", json=given, timeout=30).raise_for_status()
