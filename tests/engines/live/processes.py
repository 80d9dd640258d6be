"""Engines and routers as processes of their own, which do not outlive the tests."""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

HOME = Path(os.environ["TAILROUTE_ENGINES_HOME"])
ROUTER = Path(os.environ["TAILROUTE_BIN"])
LOGS = Path(os.environ.get("TAILROUTE_ENGINES_LOGS", Path(__file__).parent.parent / "logs"))
MODEL = "tiny"
BLOCK = 32
# It takes a minute on two idle cores, and several where others compile on them.
START_S = 900.0
PATIENCE_S = 180.0
# What routers are told that a prompt costs, and that a next prompt adds.
MS_PER_TOKEN = 0.1
NEXT_PROMPT = 200
OBJECTIVE_MS = 50.0

_running: list[Process] = []
# One for all: making a client costs more than most calls.
http = httpx.Client(timeout=120, trust_env=False)


_taken: set[int] = set()


def free_port() -> int:
    """A port that nobody listens on, below those that connections are given: an engine takes it minutes later."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe:
            if port not in _taken and probe.connect_ex(("127.0.0.1", port)) != 0:
                _taken.add(port)
                return port


def until(what: Any, found: Any, patience_s: float = PATIENCE_S, step_s: float = 0.02) -> Any:
    """Asks until the answer is true; fails with `what` was waited for, which may be a function that says how far it came."""
    end = time.monotonic() + patience_s
    while True:
        if answer := found():
            return answer
        if time.monotonic() > end:
            raise AssertionError(f"waited {patience_s:.0f} s in vain for {what() if callable(what) else what}")
        time.sleep(step_s)


def _die_with_parent() -> None:
    ctypes.CDLL("libc.so.6").prctl(1, signal.SIGKILL)


class Process:
    """A process with a group of its own, a log, and an end."""

    def __init__(self, name: str, command: list[str], env: dict[str, str]) -> None:
        LOGS.mkdir(parents=True, exist_ok=True)
        self.name, self.log = name, LOGS / f"{name}.log"
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                ["nice", "-n", "5", *command],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env},
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        _running.append(self)
        if groups := os.environ.get("TAILROUTE_ENGINES_GROUPS"):
            with open(groups, "a") as file:
                print(self._process.pid, file=file)

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def end(self, how: signal.Signals = signal.SIGTERM, patience_s: float = 8.0) -> None:
        """Ends it and everything that it started."""
        self._signal(how)
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            pass
        self._signal(signal.SIGKILL)
        self._process.wait(10)
        if self in _running:
            _running.remove(self)

    def _signal(self, how: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, how)
        except ProcessLookupError:
            pass

    def last_words(self) -> str:
        return "\n".join(line[:500] for line in self.log.read_text(errors="replace").splitlines()[-40:])


@atexit.register
def end_all() -> None:
    """Whatever happens, nothing stays behind."""
    for process in list(_running):
        process.end(signal.SIGKILL)


# So that a polite end runs the line above too.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def answers_health(server: Any) -> bool:
    """Whether a server is up; fails if it will never be."""
    assert server.process.is_alive(), f"{server.name} ended:\n{server.process.last_words()}"
    try:
        return http.get(f"{server.url}/health", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


class Engine:
    """One vLLM server on the tiny model."""

    block = BLOCK

    def __init__(
        self, name: str, blocks: int = 99, plugin: bool = True, times: bool = True, more: list[str] | None = None
    ) -> None:
        self.name, self.blocks, self.plugin = name, blocks, plugin
        # Answers tell what they took.
        self._more = ["--enable-per-request-metrics"] * times + (more or [])
        self.port, self.events, self.replay = free_port(), free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.started_in_s = 0.0
        self.process: Process
        self.start()

    @property
    def capacity_tokens(self) -> int:
        return self.blocks * BLOCK

    @property
    def dialect(self) -> str:
        """What a router finds out by asking it."""
        return "tailroute (xargs)" if self.plugin else "none"

    def start(self) -> None:
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{self.events}",
            "replay_endpoint": f"tcp://*:{self.replay}",
            "topic": "kv",
        }
        env = {
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_PLUGINS": "tailroute" if self.plugin else "",
            # So that a test can reset the prefix cache.
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        }
        # The null block is one more. The model runs within the engine's core: with a process of its own the two of them
        # wait for each other by yielding the processor in a loop, and on two cores others then wait for seconds.
        flags = f"""--served-model-name {MODEL} --host 127.0.0.1 --port {self.port} --block-size {BLOCK}
            --num-gpu-blocks-override {self.blocks + 1} --max-model-len 2560 --dtype float32 --enforce-eager
            --enable-prefix-caching --enable-prompt-tokens-details --enable-request-id-headers
            --disable-uvicorn-access-log
            --distributed-executor-backend vllm.v1.executor.uniproc_executor.UniProcExecutor""".split()
        command = [str(HOME / "vllm-0.32.0/bin/vllm"), "serve", str(HOME / "model-1"), *flags]
        started = time.monotonic()
        self.process = Process(
            self.name, [*command, "--kv-events-config", json.dumps(events), *self._more], env
        )
        until(f"{self.name} to start", lambda: answers_health(self), START_S, 0.25)
        self.started_in_s = time.monotonic() - started
        print(f"{self.name}: started in {self.started_in_s:.0f} s", file=sys.stderr)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        self.process.end(how)

    def restart(self) -> None:
        self.start()

    def metric(self, name: str, **labels: str) -> float:
        return metric(f"{self.url}/metrics", name, **labels)

    def reset_cache(self) -> None:
        """Forgets the prefix cache; listeners learn it with the next batch."""
        http.post(f"{self.url}/reset_prefix_cache", timeout=30).raise_for_status()


class Router:
    """`tailroute serve` in front of engines."""

    def __init__(self, name: str, engines: list[Any], dialect: str = "auto", **settings: Any) -> None:
        port, admin = free_port(), free_port()
        self.url, self.admin = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin}"
        self.v1 = f"{self.url}/v1"
        self._config = LOGS / f"{name}.toml"
        LOGS.mkdir(parents=True, exist_ok=True)
        self._config.write_text(_config(engines, port, admin, dialect=dialect, **settings))
        self.process = Process(name, [str(ROUTER), "serve", "--config", str(self._config)], {})
        # An engine that is short of time may say what it understands only when it is asked again.
        self._dialects = {engine.name: engine.dialect if dialect == "auto" else dialect for engine in engines}
        until(f"{name} to be ready and to know what its workers understand: {self._dialects}", self._is_ready)

    def _is_ready(self) -> bool:
        assert self.process.is_alive(), f"the router ended:\n{self.process.last_words()}"
        try:
            says = http.get(f"{self.admin}/admin/v1/slo", timeout=30).json()
            dialects = {worker["name"]: worker["dialect"] for worker in says["workers"]}
            ready = all(self.metric("tailroute_worker_ready", worker=name) == 1 for name in dialects)
            return ready and dialects == self._dialects
        except httpx.HTTPError:
            return False

    def metric(self, name: str, **labels: str) -> float:
        return metric(f"{self.admin}/metrics", name, **labels)

    def change(self, line: str, to: str) -> None:
        """Changes a line of the configuration, which the router reads when the file changes."""
        config = self._config.read_text()
        assert config.count(line) == 1, line
        self._config.write_text(config.replace(line, to))

    def cost(self) -> dict[str, float]:
        """What a prefill costs on its worker, as it believes by now."""
        names = {
            "alpha_ms_per_token": "alpha_seconds_per_token",
            "beta_ms": "beta_seconds",
            "gamma_ms_per_token2": "gamma_seconds_per_token_squared",
        }
        return {key: round(1000 * self.metric(f"tailroute_worker_cost_{name}"), 15) for key, name in names.items()}

    def stop(self) -> None:
        self.process.end()

    def __enter__(self) -> Router:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _cost(calibration: Path | None) -> str:
    if calibration:
        return f'calibration = "{calibration}"'
    return f"alpha_ms_per_token = {MS_PER_TOKEN}\nbeta_ms = 0.0"


def _config(
    engines: list[Any],
    port: int,
    admin: int,
    events: bool = True,
    rule: str = "queue-aware",
    dialect: str = "auto",
    policy: str = "tail",
    learn_costs: bool = False,
    calibration: Path | None = None,
    tenants: tuple[str, ...] = (),
    objective_ms: float = OBJECTIVE_MS,
) -> str:
    lines = [
        f'[server]\nlisten = "127.0.0.1:{port}"\n[admin]\nlisten = "127.0.0.1:{admin}"',
        f'[routing]\npolicy = "{policy}"',
        f"[objective]\nttft_ms = {objective_ms}\nnext_prompt_tokens = {NEXT_PROMPT}",
        f"[learning]\ncosts = {str(learn_costs).lower()}\nhabits = false",
        f'[hints]\nrule = "{rule}"',
        # Patient: an engine that is short of time is not dead. One that is dead refuses connections.
        "[health]\ninterval_ms = 5000.0\ntimeout_ms = 5000.0\nunhealthy_after = 12\nhealthy_after = 1\n"
        f"queue_interval_ms = {250.0 if learn_costs else 1000.0}",
        '[log]\nlevel = "info,tailroute=debug"',
    ]
    for engine in engines:
        lines.append(
            f'[[workers]]\nname = "{engine.name}"\nurl = "{engine.url}"\n'
            f"{_cost(calibration)}\n"
            f"capacity_tokens = {engine.capacity_tokens}\nblock_size_tokens = {engine.block}\n"
            f'cache_policy = "{"lru" if rule == "off" else "t-lru"}"\n'
            f'dialect = "{dialect}"\nkv_events = "{"auto" if events else "off"}"'
        )
    lines += [
        f'[[keys]]\nname = "{tenant}"\nsha256 = "{hashlib.sha256(key_of(tenant).encode()).hexdigest()}"' for tenant in tenants
    ]
    return "\n".join(lines) + "\n"


def key_of(tenant: str) -> str:
    """The API key of a tenant."""
    return f"key-of-{tenant}"


def prefill_ms(cost: dict[str, float], tokens: int) -> float:
    """What a prompt of so many tokens takes by a cost, none of them cached."""
    return cost["beta_ms"] + cost["alpha_ms_per_token"] * tokens + cost["gamma_ms_per_token2"] * tokens**2 / 2


def metric(url: str, name: str, **labels: str) -> float:
    """The sum of a metric over the series that have these labels."""
    total = 0.0
    for line in http.get(url, timeout=30).text.splitlines():
        if line.startswith(name) and line[len(name)] in "{ ":
            series, _, value = line.rpartition(" ")
            if all(f'{label}="{wanted}"' in series for label, wanted in labels.items()):
                total += float(value)
    return total
