"""Chart and binary cannot drift apart: every configuration is read by the router that it is for, and served with."""

import concurrent.futures
import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import time
import tomllib
import urllib.error
import urllib.request

import pytest

from rendered import CASES, CHART, KUSTOMIZE, ROUTER, SHAPES, chart, free_port, kustomize, lay_out, only, router, run

TOKEN = "a token of this test"
TOKENS = [{"name": "test", "role": "admin", "sha256": hashlib.sha256(TOKEN.encode()).hexdigest()}]


@pytest.fixture(scope="session")
def from_elsewhere(tmp_path_factory):
    """What the Secrets and ConfigMaps hold that somebody else has made."""
    folder = tmp_path_factory.mktemp("certificate")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=tailroute"
    done = run(*command.split(), "-keyout", folder / "key", "-out", folder / "crt")
    assert done.returncode == 0, done.stderr
    certificate, key = (folder / "crt").read_text(), (folder / "key").read_text()
    client = hashlib.sha256(b"a client's key").hexdigest()
    cost = {"alpha_ms_per_token": 0.1, "beta_ms": 20.0, "gamma_ms_per_token2": 0.0}
    return {
        "clients": {"keys.toml": f'[[keys]]\nname = "client"\nsha256 = "{client}"\n'},
        "engine-keys": {"vllm-0": "a-key-of-the-engine\n"},
        "calibrations": {"sglang-0.json": json.dumps({"version": 1, "fit": {"cost": cost}})},
        "worker-roots": {"ca.crt": certificate},
        "tailroute-tls": {"tls.crt": certificate, "tls.key": key},
    }


def check(file):
    done = run(ROUTER, "check", "--no-env", "--json", file)
    return json.loads(done.stdout)


@pytest.mark.parametrize("case", CASES)
def test_the_router_takes_what_the_chart_renders(case, tmp_path, from_elsewhere):
    told = check(lay_out(chart(case), tmp_path, from_elsewhere))
    assert told["problems"] == [] and told["ok"]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_router_takes_what_kustomize_renders(shape, tmp_path):
    told = check(lay_out(kustomize(KUSTOMIZE / "overlays" / shape), tmp_path))
    assert told["problems"] == [] and told["ok"]


@pytest.mark.parametrize("case", CASES)
def test_the_memory_limit_covers_the_routers_bound(case, tmp_path, from_elsewhere):
    documents = chart(case, discoveredWorkers=3)
    memory = check(lay_out(documents, tmp_path, from_elsewhere))["memory"]
    found = memory.get("found", {"worker_bytes": 0})["worker_bytes"] * 3
    bound = (memory["bytes"] + found) / 2**20
    limit = int(router(documents)["resources"]["limits"]["memory"].removesuffix("Mi"))
    assert bound <= limit <= bound + 2, memory
    own = chart(case, resources={"limits": {"memory": "2Gi"}})
    assert router(own)["resources"]["limits"]["memory"] == "2Gi"


def test_values_are_written_as_they_were_given(tmp_path, from_elsewhere):
    """TOML by way of a template: whole numbers stay whole, small ones are not lost, quotes and brackets are text."""
    read = tomllib.loads(lay_out(chart("everything"), tmp_path, from_elsewhere).read_text())
    worker = read["workers"][0]
    assert worker["models"] == ["llama", 'a "quoted" <model>']
    assert worker["capacity_tokens"] == 480000 and isinstance(worker["capacity_tokens"], int)
    assert worker["gamma_ms_per_token2"] == 1e-7
    assert [one["ttft_ms"] for one in read["objective"]["classes"]] == [20000, 400.5]
    assert read["limits"]["max_unread_bytes"] == 536870912
    assert read["routing"] == {"policy": "tail", "weights": {"locality": 1.2}, "cache_aware": {"imbalance_abs": 16}}


def sections_of(schema):
    """The keys of each section, by the section's name in TOML."""
    named = {re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower(): definition for name, definition in schema["$defs"].items()}
    return {name: set(definition.get("properties", {})) for name, definition in named.items()}


def test_what_the_chart_sets_itself_it_does_set():
    """What the router's schema has and the chart's has not. `make generate` writes the chart's."""
    done = run(ROUTER, "schema")
    assert done.returncode == 0, done.stderr
    routers = sections_of(json.loads(done.stdout))
    charts = sections_of(json.loads((CHART / "values.schema.json").read_text()))
    text = only(chart("gateway"), "ConfigMap", "tailroute")["data"]["tailroute.toml"]
    own = {section: keys - charts.get(section, set()) for section, keys in routers.items()}
    assert own["limits"] == {"drain_delay_s", "drain_timeout_s"}
    for section, keys in own.items():
        if section not in charts:
            keys = {"listen"}
        assert not keys or f"[{section}]" in text
        for key in keys:
            assert f"\n{key} = " in text


class Served:
    """A router as its pod runs it, but for the folder and the ports."""

    def __init__(self, folder, ports):
        self.folder, self.ports = folder, ports
        self.file = None
        self.process = None

    def documents(self, admin=None, **values):
        return chart("standalone", ports=self.ports, admin={"tokens": TOKENS, **(admin or {})}, **values)

    def lay_out(self, documents):
        self.file = lay_out(documents, self.folder)

    def start(self, documents):
        self.lay_out(documents)
        command = router(documents)["args"]
        self.log = open(self.folder / "log", "w")
        clean = {key: value for key, value in os.environ.items() if not key.startswith("TAILROUTE_")}
        self.process = subprocess.Popen(
            [ROUTER, *command[:-1], self.file], stdout=self.log, stderr=self.log, env=clean
        )
        self.until(lambda: self.get("/livez")[0] == 200)

    def change(self, documents):
        """As a ConfigMap changes: at once, by a link that leads elsewhere."""
        text = lay_out(documents, self.folder / "next").read_text()
        new = self.folder / f"{time.monotonic_ns()}.toml"
        new.write_text(text.replace(f'"{self.folder}/next/', f'"{self.folder}/'))
        link = new.with_suffix(".link")
        link.symlink_to(new)
        link.replace(self.file)

    def get(self, path, token=None):
        # The kubelet names the pod's address, which is no name of this machine's.
        headers = {"Host": f"10.1.2.3:{self.ports['admin']}"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        asked = urllib.request.Request(f"http://127.0.0.1:{self.ports['admin']}{path}", headers=headers)
        try:
            with urllib.request.urlopen(asked, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()
        except OSError as error:
            return 0, str(error)

    def config(self):
        status, text = self.get("/admin/v1/config", TOKEN)
        assert status == 200, text
        return json.loads(text)

    def until(self, holds):
        for _ in range(600):
            if holds():
                return
            assert self.process.poll() is None, (self.folder / "log").read_text()
            time.sleep(0.1)
        raise AssertionError((self.folder / "log").read_text())

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        self.log.close()
        return code


@contextlib.contextmanager
def serving(folder, **values):
    served = Served(folder, {"data": free_port(), "admin": free_port()})
    served.start(served.documents(**values))
    try:
        yield served
    finally:
        if served.process.poll() is None:
            served.process.kill()
            served.process.wait()


def test_a_router_serves_with_what_was_rendered(tmp_path):
    """As it is installed at first: probes and metrics are answered without a token, nothing else is, and a signal ends it."""
    with serving(tmp_path) as served:
        container = router(served.documents())
        assert served.get(container["livenessProbe"]["httpGet"]["path"])[0] == 200
        assert served.get(container["startupProbe"]["httpGet"]["path"])[0] == 200
        status, text = served.get(container["readinessProbe"]["httpGet"]["path"])
        assert (status, text) == (503, "no worker is ready\n")
        status, text = served.get("/metrics")
        assert status == 200 and "tailroute_workers" in text
        assert served.get("/admin/v1/policy")[0] == 401
        assert served.get("/admin/v1/policy", TOKEN)[0] == 200
        assert served.stop() == 0
        assert (tmp_path / "var/lib/tailroute/snapshot").exists()


WORKERS = [{"name": "vllm-0", "url": "http://127.0.0.1:9"}, {"name": "vllm-1", "url": "http://127.0.0.1:19"}]

# What is changed in the values, one after the other.
CHANGES = [
    {"config": {"workers": WORKERS, "routing": {"weights": {"locality": 1.5}}}},
    {"config": {"workers": WORKERS, "routing": {"policy": "least_ttft"}}},
    {"config": {"workers": WORKERS, "routing": {"utilisation_window_s": 30}}},
    {"config": {"workers": WORKERS, "objective": {"ttft_ms": 900, "classes": [{"name": "batch", "ttft_ms": 9000}]}}},
    {"config": {"workers": WORKERS, "admission": {"max_queue": 10, "shed": True}}},
    {"config": {"workers": WORKERS, "limits": {"max_in_flight": 10, "idle_timeout_s": 30}}},
    {"config": {"workers": WORKERS, "limits": {"max_connections": 10}}},
    {"config": {"workers": WORKERS, "limits": {"connect_timeout_s": 1}}},
    {"config": {"workers": WORKERS, "limits": {"header_timeout_s": 1}}},
    {"config": {"workers": WORKERS, "limits": {"max_header_bytes": 16384}}},
    {"config": {"workers": WORKERS}, "drain": {"timeoutSeconds": 100}},
    {"config": {"workers": WORKERS}, "admin": {"openMetrics": False}},
    {"config": {"workers": WORKERS[:1]}},
    {"config": {"workers": WORKERS, "health": {"interval_ms": 3000}}},
    {"config": {"workers": WORKERS, "hints": {"rule": "off"}}},
    {"config": {"workers": WORKERS, "hints": {"protect_from": 4}}},
    {"config": {"workers": WORKERS, "learning": {"costs": False}}},
    {"config": {"workers": WORKERS, "failure": {"slow_start_s": 1}}},
    {"config": {"workers": WORKERS, "http": {"forwarded": "off"}}},
    {"config": {"workers": WORKERS, "log": {"level": "debug"}}},
    {"config": {"workers": WORKERS, "index": {"max_bytes": 8388608}}},
    {"config": {"workers": WORKERS, "explain": {"in_answers": True}}},
    {"config": {"workers": WORKERS, "traces": {"endpoint": "http://127.0.0.1:9"}}},
    {"config": {"workers": WORKERS, "capture": {"path": "/var/lib/tailroute/capture.jsonl"}}},
]


def checksum(documents):
    template = only(documents, "Deployment")["spec"]["template"]
    return template["metadata"]["annotations"]["tailroute.io/needs-restart"]


def judged(folder, changes):
    """Each change, whether the checksum differs for it, and whether the router says that it needs a restart."""
    folder.mkdir()
    before = {"config": {"workers": WORKERS}}
    with serving(folder, **before) as served:
        template = served.documents(**before)
        for change in changes:
            documents = served.documents(**change)
            generation = served.config()["generation"]
            served.change(documents)
            served.until(lambda: served.config()["generation"] > generation)
            config = served.config()
            assert config["refused"] is None, change
            yield change, checksum(documents) != checksum(template), bool(config["needs_restart"])


def test_pods_are_replaced_when_the_router_needs_it_and_only_then(tmp_path):
    """The pod template's checksum is of what needs a restart. Routers that serve are the judges of what does: several, since
    most of the time they wait for a file to have settled."""
    routers = 4
    with concurrent.futures.ThreadPoolExecutor(routers) as threads:
        parts = [threads.submit(lambda at: list(judged(tmp_path / str(at), CHANGES[at::routers])), at) for at in range(routers)]
        verdicts = [verdict for part in parts for verdict in part.result()]
    assert len(verdicts) == len(CHANGES)
    assert [change for change, differs, needed in verdicts if differs != needed] == []
    assert {needed for _, _, needed in verdicts} == {True, False}
