"""A real Envoy before simulated engines, which asks a router for the worker, set up as docs/endpoint-picker.md says."""

import contextlib
import copy
import http.client
import json
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import yaml

from rendered import ROOT, ROUTER, free_port

ENVOY = pathlib.Path(sys.executable).with_name("envoy")
ENGINE = ROUTER.with_name("sim-engine")
CHAT = "/v1/chat/completions"
PATIENCE_S = 30


def documented():
    """The file that the page shows."""
    page = (ROOT / "docs" / "endpoint-picker.md").read_text()
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page, re.S)]
    (file,) = [block for block in blocks if "static_resources" in block]
    return file


def until(holds, what):
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if holds():
            return
        time.sleep(0.05)
    raise AssertionError(f"never came to be: {what}")


def is_open(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


class Site:
    """Engines, a router that picks, and an Envoy; all of them end with it."""

    def __init__(self, folder, engines, change=lambda envoy: None, fallbacks=0, probes_ms=100, more=()):
        self.folder, self.processes = folder, []
        self.ports = {name: free_port() for name in ["data", "admin", "picker", "envoy", "envoy_admin"]}
        self.engines = [free_port() for _ in range(engines)]
        self.started = [
            self.run(ENGINE, "--listen", f"127.0.0.1:{port}", "--time-scale", "100", *more) for port in self.engines
        ]
        workers = "".join(f'[[workers]]\nurl = "http://127.0.0.1:{port}"\n' for port in self.engines)
        settings = folder / "tailroute.toml"
        settings.write_text(
            f'[server]\nlisten = "127.0.0.1:{self.ports["data"]}"\n'
            f'[admin]\nlisten = "127.0.0.1:{self.ports["admin"]}"\n'
            f'[endpoint_picker]\nlisten = "127.0.0.1:{self.ports["picker"]}"\nfallbacks = {fallbacks}\n'
            # What engines cost stays as it is written: they are a hundred times as fast as they say.
            f"[learning]\ncosts = false\n[health]\ninterval_ms = {probes_ms}\ntimeout_ms = {min(probes_ms, 1000)}\n"
            # Patient: an engine that a busy machine gives no time for seconds is not dead.
            f"unhealthy_after = 30\n{workers}"
        )
        # A worker that is not there at the first probe is asked again only at the next.
        for port in self.engines:
            until(lambda: is_open(port), "the engine listens")
        self.router = self.run(ROUTER, "serve", "--config", settings)
        self.envoy = self.gateway(change)
        until(lambda: self.router.poll() is not None or self.admin("/readyz")[0] == 200, "the router is ready")
        until(lambda: is_open(self.ports["envoy"]), "Envoy listens")
        metric = ("tailroute_workers", 'state="ready"')
        until(lambda: self.metric(*metric) == engines, "all engines are ready")

    def run(self, *command):
        log = open(self.folder / f"log-{len(self.processes)}", "w")
        process = subprocess.Popen([str(part) for part in command], stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def gateway(self, change):
        envoy = copy.deepcopy(documented())
        listener, (workers, picker) = envoy["static_resources"]["listeners"][0], envoy["static_resources"]["clusters"]
        at = listener["address"]["socket_address"]
        at.update(address="127.0.0.1", port_value=self.ports["envoy"])
        (endpoint,) = picker["load_assignment"]["endpoints"][0]["lb_endpoints"]
        endpoint["endpoint"]["address"]["socket_address"]["port_value"] = self.ports["picker"]
        change(Parts(listener["filter_chains"][0]["filters"][0]["typed_config"], workers, self.engines))
        file = self.folder / "envoy.yaml"
        file.write_text(yaml.safe_dump(envoy))
        return self.run(ENVOY, "-c", file, "--use-dynamic-base-id", "--concurrency", "2", "-l", "warn")

    def admin(self, path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports['admin']}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, ""
        except OSError:
            return 0, ""

    def metric(self, name, labels=""):
        """The sum of a metric's series that carry the labels."""
        lines = [line for line in self.admin("/metrics")[1].splitlines() if re.match(rf"{name}(\{{|\s)", line)]
        return sum(float(line.split(" ")[1 if "{" not in line else -1]) for line in lines if labels in line)

    def ask(self, body, method="POST", path=CHAT, headers=None):
        """Sends a request, and returns the answer whose body is still to be read."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ports["envoy"], timeout=PATIENCE_S)
        body = body if body is None or isinstance(body, bytes) else json.dumps(body)
        connection.request(method, path, body, {"content-type": "application/json", **(headers or {})})
        answer = connection.getresponse()
        answer.connection = connection
        return answer

    def chat(self, messages, **more):
        answer = self.ask({"model": "sim", "messages": messages, "max_tokens": 8, **more})
        return answer.status, dict(answer.getheaders()), answer.read().decode()

    def turn(self, talk, text):
        """The next turn of a conversation, streamed. Returns the port of the engine that served it and what it had cached."""
        talk.append({"role": "user", "content": text})
        status, headers, body = self.chat(talk, stream=True, stream_options={"include_usage": True})
        assert status == 200, body
        *events, done = [line[6:] for line in body.splitlines() if line.startswith("data: ")]
        assert done == "[DONE]"
        events = [json.loads(event) for event in events]
        said = "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])
        talk.append({"role": "assistant", "content": said})
        usage = events[-1]["usage"]
        return int(headers["x-tailroute-worker"].split(":")[1]), usage["prompt_tokens_details"]["cached_tokens"]

    def at_rest(self):
        until(lambda: self.metric("tailroute_picker_streams") == 0, "no stream is open")
        until(lambda: self.metric("tailroute_worker_in_flight") == 0, "nothing counts on a worker")

    def kill(self, port):
        process = self.started[self.engines.index(port)]
        process.kill()
        process.wait()

    def close(self):
        for process in reversed(self.processes):
            process.send_signal(signal.SIGKILL)
            process.wait()


class Parts:
    """The parts of Envoy's file that a test may change."""

    def __init__(self, manager, workers, engines):
        self.manager, self.workers, self.engines = manager, workers, engines
        self.filters = manager["http_filters"]
        self.processor = self.filters[0]["typed_config"]
        self.route = manager["route_config"]["virtual_hosts"][0]["routes"][0]["route"]


@contextlib.contextmanager
def site(folder, engines, **options):
    one = None
    try:
        one = Site.__new__(Site)
        one.__init__(folder, engines, **options)
        yield one
    except BaseException:
        for log in sorted(folder.glob("log-*")):
            print(f"--- {log.name}\n{log.read_text()[-3000:]}")
        raise
    finally:
        one.close()
