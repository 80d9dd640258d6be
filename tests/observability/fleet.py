"""Simulated engines, a router in front of them, Prometheus, and clients: real processes on loopback."""

import concurrent.futures
import json
import os
import pathlib
import re
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

from collector import Collector

ROOT = pathlib.Path(__file__).resolve().parents[2]
OBSERVABILITY = ROOT / "deploy" / "observability"
# On a machine that is busy with other things, everything takes many times as long.
PATIENCE_S = 240


def free_ports(count):
    """Ports that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def get(url, headers=None):
    """The body of an answer; fails on any status but 200."""
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers or {}), timeout=30) as answer:
        return answer.read().decode()


def until(what, look):
    """Waits until `look` returns something that counts, and returns it."""
    deadline = time.monotonic() + PATIENCE_S
    last = None
    while time.monotonic() < deadline:
        try:
            last = look()
        except (OSError, urllib.error.URLError) as error:
            last = error
        else:
            if last:
                return last
        time.sleep(0.2)
    raise AssertionError(f"never came to be: {what}; last seen: {last!r}")


class Processes:
    """Processes that end with the test."""

    def __init__(self, folder):
        self.folder, self.running, self.last = pathlib.Path(folder), [], []

    def ends(self, last):
        """Something else to be called at the end."""
        self.last.append(last)

    def start(self, name, *command):
        with open(self.folder / f"{name}.log", "wb") as log:
            self.running.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.running:
            process.terminate()
        for process in self.running:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for last in self.last:
            last()


class Fleet:
    """Three engines, a router that sends turns to each in turn, a collector for its traces, and Prometheus with the rules of
    deploy/."""

    def __init__(self, processes, binaries):
        self.collector = Collector()
        processes.ends(self.collector.stop)
        ports = free_ports(8)
        self.engines = [f"http://127.0.0.1:{port}" for port in ports[:3]]
        self.data, self.admin = (f"http://127.0.0.1:{port}" for port in ports[3:5])
        self.prometheus = f"http://127.0.0.1:{ports[5]}"
        events = f"tcp://127.0.0.1:{ports[6]}"
        self.slowed = 0
        for at, port in enumerate(ports[:3]):
            extra = ["--kv-events", events] if at == 1 else []
            processes.start(
                f"engine-{at}", str(binaries / "sim-engine"), "--listen", f"127.0.0.1:{port}",
                "--alpha-ms", "0.05", "--beta-ms", "5", "--tpot-ms", "1", *extra,
            )
        workers = "".join(
            f'[[workers]]\nname = "engine-{at}"\nurl = "{url}"\nalpha_ms_per_token = 0.05\nbeta_ms = 5.0\n'
            + (f'kv_events = "{events}"\n' if at == 1 else "")
            for at, url in enumerate(self.engines)
        )
        config = processes.folder / "tailroute.toml"
        config.write_text(
            f'[server]\nlisten = "{self.data[7:]}"\n[admin]\nlisten = "{self.admin[7:]}"\n{workers}'
            # Each in turn, so that a third of the turns meets the slow one. Far more than a healthy engine takes, however
            # busy the machine.
            '[routing]\npolicy = "round_robin"\n[objective]\nttft_ms = 2500.0\nshare = 0.99\n'
            "[health]\nqueue_interval_ms = 200.0\n"
            f'[traces]\nendpoint = "http://127.0.0.1:{self.collector.port}"\n'
        )
        processes.start("tailroute", str(binaries / "tailroute"), "serve", "--config", str(config))
        self._start_prometheus(processes)
        until("the workers are ready", self._ready)

    def _ready(self):
        page = get(f"{self.admin}/metrics")
        return re.search(r'tailroute_workers\{state="ready"\} 3\b', page)

    def _start_prometheus(self, processes):
        rules = OBSERVABILITY / "prometheus" / "tailroute.rules.yml"
        config = processes.folder / "prometheus.yml"
        config.write_text(
            "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
            f"rule_files: [{rules}]\n"
            "scrape_configs:\n"
            f"  - {{job_name: tailroute, static_configs: [{{targets: ['{self.admin[7:]}']}}]}}\n"
        )
        processes.start(
            "prometheus", "prometheus", f"--config.file={config}", f"--storage.tsdb.path={processes.folder / 'tsdb'}",
            f"--web.listen-address={self.prometheus[7:]}", "--enable-feature=exemplar-storage",
        )

    def query(self, expression):
        """The samples that a query is answered with."""
        url = f"{self.prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        return json.loads(get(url))["data"]["result"]

    def slow(self, engine, times):
        """From now on an engine takes so many times as long."""
        request = urllib.request.Request(
            f"{self.engines[engine]}/sim/fault", data=json.dumps({"slow": times}).encode(), method="PUT",
            headers={"content-type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=30).close()

    def turns(self, count, words):
        """Conversations of four turns each, eight at a time."""
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda at: self._conversation(at, words), range(count // 4)))

    def _conversation(self, at, words):
        name = f"{os.getpid()}-{time.monotonic_ns()}-{at}"
        messages = [{"role": "system", "content": " ".join(f"{name}-{word}" for word in range(words))}]
        for turn in range(4):
            messages.append({"role": "user", "content": f"question {turn} of {name}"})
            messages.append({"role": "assistant", "content": self._ask(name, messages)})

    def _ask(self, name, messages):
        body = {
            "model": "sim", "messages": messages, "stream": True, "max_tokens": 8,
            "stream_options": {"include_usage": True},
        }
        request = urllib.request.Request(
            f"{self.data}/v1/chat/completions", data=json.dumps(body).encode(),
            headers={"content-type": "application/json", "x-session-id": name},
        )
        said = ""
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    for choice in json.loads(line[6:])["choices"]:
                        said += choice.get("delta", {}).get("content") or ""
        assert said, "an answer without words"
        return said
