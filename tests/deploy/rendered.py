"""What the chart and kustomize make of their sources, and what a router would find in the pod."""

import base64
import functools
import json
import os
import pathlib
import socket
import subprocess
import tempfile
import threading

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "tailroute"
KUSTOMIZE = ROOT / "deploy" / "kustomize"
TOOLS = pathlib.Path(os.environ["TAILROUTE_DEPLOY_TOOLS"])
ROUTER = pathlib.Path(os.environ["TAILROUTE_BIN"]).resolve()

SHAPES = ["standalone", "native-sidecar", "plain-sidecar"]
CASES = [*SHAPES, "everything", "gateway"]
NAMESPACE = "tailroute"


class Refused(Exception):
    """What Helm says of values that it does not take."""


def run(*command, **options):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=600, **options)


_given, _giving = set(), threading.Lock()


def free_port():
    """A free port, each time another one: it is listened on a moment later."""
    with _giving:
        while True:
            with socket.socket() as one:
                one.bind(("127.0.0.1", 0))
                port = one.getsockname()[1]
            if port not in _given:
                _given.add(port)
                return port


def helm(*arguments):
    done = run(TOOLS / "helm", *arguments)
    if done.returncode != 0:
        raise Refused(done.stderr)
    return done.stdout


def values_of(case):
    return CHART / "ci" / f"{case}-values.yaml"


def objects(text):
    return [document for document in yaml.safe_load_all(text) if document]


@functools.cache
def _chart(case, values):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(values)
        file.flush()
        of_case = ["-f", values_of(case)] if case else []
        return helm("template", "tailroute", CHART, "--namespace", NAMESPACE, *of_case, "-f", file.name)


def chart(case, **values):
    """The chart's objects for one of the files in ci/ (or none), with `values` on top."""
    return objects(_chart(case, json.dumps(values)))


@functools.cache
def _kustomize(path):
    done = run(TOOLS / "kubectl", "kustomize", path)
    assert done.returncode == 0, done.stderr
    return done.stdout


def kustomize(folder):
    return objects(_kustomize(folder))


def only(documents, kind, name=None):
    found = [one for one in documents if one["kind"] == kind and name in (None, one["metadata"]["name"])]
    assert len(found) == 1, f"{len(found)} of {kind} {name or ''}"
    return found[0]


def pod(documents):
    return only(documents, "Deployment")["spec"]["template"]["spec"]


def router(documents):
    """The router's container, whichever list it is in."""
    spec = pod(documents)
    found = [one for one in [*spec.get("initContainers", []), *spec["containers"]] if one["name"] == "tailroute"]
    assert len(found) == 1
    return found[0]


def contents(document):
    """The files that a ConfigMap or Secret becomes."""
    files = {**document.get("stringData", {})}
    for name, text in (document.get("data") or {}).items():
        files[name] = base64.b64decode(text).decode() if document["kind"] == "Secret" else text
    return files


def lay_out(documents, folder, from_elsewhere=None):
    """The router's files as its pod has them, below `folder`; returns the configuration's. `from_elsewhere` holds what
    Secrets and ConfigMaps would that are not part of the installation."""
    spec, container = pod(documents), router(documents)
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    for mount in container["volumeMounts"]:
        assert "subPath" not in mount, "a subPath never follows its ConfigMap"
        place = pathlib.Path(f"{folder}{mount['mountPath']}")
        place.mkdir(parents=True, exist_ok=True)
        volume = volumes[mount["name"]]
        for kind, key in (("ConfigMap", "name"), ("Secret", "secretName")):
            source = volume.get(kind[0].lower() + kind[1:])
            if source is None:
                continue
            name = source[key]
            own = [one for one in documents if one["kind"] == kind and one["metadata"]["name"] == name]
            for file, text in (contents(own[0]) if own else from_elsewhere[name]).items():
                # The router's paths are those of the pod; here they lie below a folder.
                for root in ("/etc/tailroute/", "/var/lib/tailroute/"):
                    text = text.replace(f'"{root}', f'"{folder}{root}')
                (place / file).write_text(text)
    command, flag, file = container["args"]
    assert (command, flag) == ("serve", "--config")
    return pathlib.Path(f"{folder}{file}")
