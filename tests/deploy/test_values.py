"""The chart's values: what is refused, and that schema, defaults and documentation name the same."""

import json

import pytest
import yaml

from rendered import CHART, Refused, chart, helm

WORKER = {"url": "http://a:8000"}
DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

# What is wrong, and what the message has to name.
REFUSED = [
    ("standalone", {"shape": "sidecar"}, "'/shape': value must be one of 'standalone', 'native-sidecar', 'plain-sidecar'"),
    ("standalone", {"replica": 2}, "'replica' not allowed"),
    ("standalone", {"replicas": "2"}, "/replicas"),
    ("standalone", {"image": {"repository": ""}}, "image.repository: missing; there is no public image"),
    ("standalone", {"image": {"digest": "latest"}}, "/image/digest"),
    ("standalone", {"image": {"pullPolicy": "always"}}, "/image/pullPolicy"),
    ("standalone", {"config": {"workers": []}}, "/config/workers"),
    (None, {"image": {"repository": "r"}}, "config.workers: missing; list the workers, or set config.discovery"),
    ("standalone", {"replicaCount": 2}, "replicaCount: not a value of this chart; did you mean replicas?"),
    ("standalone", {"volumes": []}, "volumes: not a value of this chart; did you mean extraVolumes?"),
    ("standalone", {"config": {"workers": [{"url": "a:8000"}]}}, "'/config/workers/0/url': 'a:8000' does not match pattern"),
    ("standalone", {"ingress": {"enabled": True}}, "ingress.hosts: missing"),
    ("standalone", {"ingress": {"hosts": [{"host": "a"}]}}, "'/ingress/hosts/0': missing property 'paths'"),
    ("standalone", {"httpRoute": {"enabled": True}}, "httpRoute.parentRefs: missing"),
    ("standalone", {"autoscaling": {"enabled": True, "minReplicas": 9}}, "autoscaling.minReplicas: above autoscaling.maxReplicas"),
    ("standalone", {"autoscaling": {"enabled": True}, "snapshot": {"existingClaim": "c"}}, "snapshot.existingClaim: one claim"),
    ("plain-sidecar", {"autoscaling": {"enabled": True}}, "autoscaling.enabled: only where shape is standalone"),
    ("native-sidecar", {"extraContainers": [{"name": "a", "image": "b"}]}, "extraContainers: only where shape is standalone"),
    ("standalone", {"extraContainers": [{"name": "tailroute", "image": "b"}]}, "/extraContainers/0/name"),
    ("standalone", {"extraVolumes": [{"name": "tailroute-state"}]}, "/extraVolumes/0/name"),
    ("standalone", {"config": {"workers": [{"name": "a"}]}}, "'/config/workers/0': missing property 'url'"),
    ("standalone", {"config": {"workers": [WORKER | {"capacity": 1}]}}, "'/config/workers/0': additional properties 'capacity'"),
    ("standalone", {"config": {"workers": [WORKER | {"ranks": 65}]}}, "/config/workers/0/ranks"),
    ("standalone", {"config": {"routing": {"weights": {"localty": 1}}}}, "'/config/routing/weights': additional properties 'localty'"),
    ("standalone", {"config": {"objective": {"share": 95}}}, "/config/objective/share"),
    ("standalone", {"config": {"routing": {"policy": "fastest"}}}, "/config/routing/policy"),
    ("standalone", {"config": {"discovery": {"kubernetes": {"service": "vllm"}}}}, "additional properties 'service'"),
    ("standalone", {"rbac": {"endpointSlices": True}}, "'/rbac': additional properties 'endpointSlices'"),
    ("standalone", {"config": {"server": {"listen": "0.0.0.0:80"}}}, "'server' not allowed"),
    ("standalone", {"config": {"admin": {"tokens_file": "/t"}}}, "'/config/admin': additional properties 'tokens_file'"),
    ("standalone", {"config": {"limits": {"drain_timeout_s": 9}}}, "'/config/limits': additional properties 'drain_timeout_s'"),
    ("standalone", {"config": {"limits": {"drain_delay_s": 9}}}, "'/config/limits': additional properties 'drain_delay_s'"),
    ("standalone", {"config": {"index": {"snapshot_path": "/s"}}}, "'/config/index': additional properties 'snapshot_path'"),
    ("standalone", {"ports": {"data": 80}}, "/ports/data"),
    ("standalone", {"ports": {"admin": 8080}}, "ports.admin: 8080 is the data port"),
    ("standalone", {"ports": {"picker": 80}}, "/ports/picker"),
    ("standalone", {"ports": {"picker": 9090}}, "ports.picker: 9090 is the data port or the admin port"),
    ("standalone", {"config": {"endpoint_picker": {"fallbacks": 1}}}, "ports.picker: missing"),
    ("gateway", {"config": {"endpoint_picker": {"listen": "0.0.0.0:9002"}}}, "additional properties 'listen'"),
    ("standalone", {"bindAddress": "127.0.0.1"}, "/bindAddress"),
    ("standalone", {"service": {"type": "ExternalName"}}, "/service/type"),
    ("standalone", {"admin": {"tokens": [{"name": "a", "role": "root", "sha256": DIGEST}]}}, "/admin/tokens/0/role"),
    ("standalone", {"admin": {"tokens": [{"name": "a", "role": "read", "sha256": "tr-secret"}]}}, "/admin/tokens/0/sha256"),
    ("everything", {"admin": {"existingSecret": "t"}}, "admin.tokens: the tokens already come from admin.existingSecret"),
    ("standalone", {"apiKeys": {"existingSecret": "Not A Name"}}, "/apiKeys/existingSecret"),
    ("standalone", {"mounts": {"config": {"secret": "a"}}}, "mounts.config: the chart mounts a folder of that name itself"),
    ("standalone", {"mounts": {"tls": {"secret": "a", "configMap": "b"}}}, "/mounts/tls"),
    ("standalone", {"mounts": {"tls": {}}}, "/mounts/tls"),
    ("standalone", {"mounts": {"../etc": {"secret": "a"}}}, "'../etc'"),
    ("standalone", {"drain": {"timeout": 130}}, "'/drain': additional properties 'timeout'"),
    ("standalone", {"drain": {"delaySeconds": -1}}, "/drain/delaySeconds"),
    ("standalone", {"replicas": 2, "snapshot": {"existingClaim": "c"}}, "snapshot.existingClaim: one claim for several replicas"),
    ("standalone", {"stateSizeLimit": "1 GB"}, "/stateSizeLimit"),
    ("standalone", {"app": {"containers": [{"name": "a", "image": "b"}]}}, "app: only where shape is native-sidecar or plain-sidecar"),
    ("standalone", {"app": {"existing": True}}, "app: only where shape is native-sidecar or plain-sidecar"),
    ("native-sidecar", {"app": {"existing": True}}, "app.containers: with app.existing"),
    ("native-sidecar", {"app": {"containers": []}}, "app.containers: missing"),
    ("native-sidecar", {"app": {"containers": [{"name": "tailroute", "image": "b"}]}}, "/app/containers/0/name"),
    ("native-sidecar", {"app": {"containers": [{"name": "a"}]}}, "'/app/containers/0': missing property 'image'"),
    ("plain-sidecar", {"networkPolicy": {"enabled": True}}, "networkPolicy.enabled: only where shape is standalone"),
    ("standalone", {"resources": {"limits": {"memory": "2GB"}}}, "/resources/limits/memory"),
    ("standalone", {"podDisruptionBudget": {"maxUnavailable": 0}}, "/podDisruptionBudget/maxUnavailable"),
    ("standalone", {"monitoring": {"kind": "podmonitor"}}, "/monitoring/kind"),
    ("standalone", {"monitoring": {"kind": "PodMonitor"}, "admin": {"openMetrics": False}}, "monitoring.tokenSecret: missing"),
    ("standalone", {"topologySpread": {"whenUnsatisfiable": "Never"}}, "/topologySpread"),
    ("standalone", {"serviceAccount": {"automount": True}}, "'/serviceAccount': additional properties 'automount'"),
]


@pytest.mark.parametrize("case, values, named", REFUSED, ids=[str(values) for _, values, _ in REFUSED])
def test_a_mistake_is_refused_by_its_name(case, values, named):
    with pytest.raises(Refused) as refused:
        chart(case, **values)
    assert named in str(refused.value)


def described(schema, path=""):
    """Every path of the schema at which unknown keys would be taken."""
    if schema.get("type") == "object" and "properties" in schema:
        if schema.get("additionalProperties") is not False:
            yield path
        for key, below in schema["properties"].items():
            yield from described(below, f"{path}.{key}")
    elif isinstance(schema.get("items"), dict):
        yield from described(schema["items"], f"{path}[]")


def test_the_schema_and_the_values_have_the_same_keys():
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def same(wanted, given, path):
        assert set(wanted) == set(given), path
        for key, below in given.items():
            # What the router, Kubernetes or people name themselves.
            if isinstance(below, dict) and key not in ("config", "resources") and "properties" in wanted[key]:
                same(wanted[key]["properties"], below, f"{path}.{key}")

    del schema["properties"]["global"]
    same(schema["properties"], values, "values")
    # Kubernetes checks its own types itself.
    kubernetes = ["app.containers[]", "extraEnv[]", "extraVolumes[]", "extraVolumeMounts[]", "extraContainers[]"]
    assert set(described(schema)) == {f".{path}" for path in [*kubernetes, "httpRoute.parentRefs[]"]}


def test_the_chart_lints_without_values():
    assert "1 chart(s) linted, 0 chart(s) failed" in helm("lint", CHART)


def test_the_charts_readme_names_every_value():
    text = (CHART / "README.md").read_text()
    missing = [key for key in yaml.safe_load((CHART / "values.yaml").read_text()) if f"`{key}`" not in text and f"`{key}." not in text]
    assert not missing
