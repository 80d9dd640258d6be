"""What the pages name exists: configurations load, and keys, metrics, files and paths of the HTTP interfaces are known."""

import functools
import json
import re
import subprocess
import tomllib

import pytest
import yaml

import stage as stages
from pages import OTHERS, PAGES, ROOT, blocks, inline_code, name

BLOCKS = [block for page in PAGES for block in blocks(page)]
WORKER = '[[workers]]\nurl = "http://127.0.0.1:8000"\n'
CLASS = '[[objective.classes]]\nname = "batch"\nttft_ms = 5000\n'
# A field of requests, a crate, a folder that tests write, a placeholder.
NEITHER = {"tailroute_evict_first_tokens", "tailroute_http", "tests/engines/logs", "router/NAME"}
CALIBRATION = {"version": 1, "fit": {"cost": {"alpha_ms_per_token": 0.1, "beta_ms": 20, "gamma_ms_per_token2": 0}}}


def of_language(language):
    return pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == language], ids=str)


@of_language("toml")
def test_a_configuration_loads(block, tmp_path):
    """Whole, or a part of one: then with a worker. Files that it names are there."""
    text = block.text.replace('"/etc/tailroute/', f'"{tmp_path}/')
    parsed = tomllib.loads(text)
    if not set(parsed) & set(schema()["properties"]):
        text, parsed = f"[routing]\n{text}" if block.page.name == "replay.md" else f"[routing.cache_aware]\n{text}", {}
    if "workers" not in parsed and "discovery" not in parsed:
        text += WORKER
    if "classes" in parsed.get("routing", {}):
        text += CLASS
    (tmp_path / "tailroute.toml").write_text(text)
    (tmp_path / "tokens.toml").write_text(stages.program("tailroute", "key", "new", "--role", "read", "alice"))
    (tmp_path / "gpu-0.json").write_text(json.dumps(CALIBRATION))
    checked = subprocess.run([stages.PROGRAMS / "tailroute", "check", "--no-env", "tailroute.toml"], cwd=tmp_path, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


@of_language("yaml")
def test_yaml_parses(block):
    assert list(yaml.safe_load_all(block.text))


@of_language("json")
def test_json_parses(block):
    try:
        json.loads(block.text)
    except ValueError:
        for line in block.text.splitlines():
            json.loads(line[line.index("{") :])


@functools.cache
def schema():
    return json.loads(stages.program("tailroute", "schema"))


def keys(node, prefix=""):
    """All keys of the configuration as the pages write them: `section.key`, `workers[].key`."""
    node = schema()["$defs"][node["$ref"].split("/")[-1]] if "$ref" in node else node
    for part in node.get("allOf", []) + node.get("anyOf", []):
        yield from keys(part, prefix)
    for key, value in node.get("properties", {}).items():
        yield prefix + key
        yield from keys(value, f"{prefix}{key}.")
    for inner, mark in (("items", "[]"), ("additionalProperties", "*")):
        if isinstance(node.get(inner), dict):
            yield from keys(node[inner], prefix[:-1] + mark + ".")


@functools.cache
def known_keys():
    """Those of the configuration, and of the chart's values."""
    chart = yaml.safe_load((ROOT / "deploy/helm/tailroute/values.yaml").read_text())
    values = {f"{section}.{key}" for section, inner in chart.items() if isinstance(inner, dict) for key in inner}
    return {*keys(schema()), *values}


def wrong_in(page, pattern, is_known):
    return [f"{name(page)}:{line}: {found}" for line, code in inline_code(page) for found in re.findall(pattern, code) if not is_known(found)]


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=name)
def test_named_keys_exist(page):
    lists = ("workers", "keys")
    sections = "|".join([rf"{section}\[\]" if section in lists else section for section in schema()["properties"]])
    pattern = rf"^((?:{sections})\.[a-z_.]+[a-z])(?: =.*)?$"
    assert wrong_in(page, pattern, known_keys().__contains__) == []


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=name)
def test_named_metrics_exist(page):
    known = (ROOT / "docs/metrics.md").read_text() + " ".join(p.read_text() for p in (ROOT / "deploy/observability/prometheus").glob("*.yml"))
    assert wrong_in(page, r"(?<![\w.])tailroute_[a-z_]+(?![\w/])", lambda metric: metric in known or metric in NEITHER) == []


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=name)
def test_named_files_exist(page):
    pattern = r"^((?:policy|router|config|sse|gpu-bench|sim-engine|tests|scripts|deploy|docs)/[\w./-]+)"
    assert wrong_in(page, pattern, lambda path: path in NEITHER or (ROOT / path).exists() or (page.parent / path).exists()) == []


def test_named_paths_exist(stage):
    """Those of the admin port in its OpenAPI document, those of the data port by its own answers."""
    stage.router()
    documented = [re.sub(r"\{\w+\}", "[^/]+", path) for path in stages.admin("/admin/v1/openapi.json")["paths"]]
    texts = [(f"{name(page)}:{line}", code) for page in [*PAGES, *OTHERS] for line, code in inline_code(page)]
    texts += [(str(block), block.text) for block in BLOCKS if block.language == "sh"]
    wrong = []
    for place, text in texts:
        for path in re.findall(r"/admin/v1/[\w/{}.-]*", text):
            if not any(re.fullmatch(known, path.rstrip("/")) for known in documented):
                wrong.append(f"{place}: {path}")
        for path in re.findall(r":8080(/[\w/.-]+)", text):
            stage.run(f"curl -s -o /dev/null -D - http://127.0.0.1:8080{path}")
            if "x-tailroute-error: not_found" in stage.printed:
                wrong.append(f"{place}: {path}")
    assert wrong == []
