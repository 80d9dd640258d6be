"""kustomize and the chart install the same."""

import tomllib

import pytest

from rendered import KUSTOMIZE, SHAPES, chart, contents, kustomize

# What only one of the two can know: who made it, and a checksum of values.
LABELS = ["helm.sh/chart", "app.kubernetes.io/managed-by"]
ANNOTATIONS = ["tailroute.io/needs-restart"]


def plain(document):
    """The document without what has no say: the maker's marks, the order of volumes, and whether files are text or base64."""
    if isinstance(document, list):
        return [plain(one) for one in document]
    if not isinstance(document, dict):
        return document
    document = {key: plain(value) for key, value in document.items()}
    for key, marks in (("labels", LABELS), ("annotations", ANNOTATIONS)):
        if isinstance(document.get(key), dict):
            document[key] = {name: value for name, value in document[key].items() if name not in marks}
    if "volumes" in document:
        document["volumes"] = sorted(document["volumes"], key=lambda volume: volume["name"])
    if document.get("kind") in ("ConfigMap", "Secret"):
        files = {name: tomllib.loads(text) for name, text in contents(document).items()}
        document = {key: value for key, value in document.items() if key not in ("data", "stringData")} | {"files": files}
    return document


def by_name(documents):
    # A test hook is Helm's own.
    installed = [one for one in documents if "helm.sh/hook" not in one["metadata"].get("annotations", {})]
    found = {(one["kind"], one["metadata"]["name"]): plain(one) for one in installed}
    assert len(found) == len(installed)
    return found


@pytest.mark.parametrize("shape", SHAPES)
def test_an_overlay_is_what_the_chart_renders(shape):
    ours, charts = by_name(kustomize(KUSTOMIZE / "overlays" / shape)), by_name(chart(shape))
    assert ours.keys() == charts.keys()
    for name, document in charts.items():
        assert ours[name] == document, name


COMPONENTS = {
    "network-policy": ("NetworkPolicy", {"networkPolicy": {"enabled": True}}),
    "pod-monitor": ("PodMonitor", {"monitoring": {"kind": "PodMonitor"}}),
    "discovery-services": ("Role", {"config": {"discovery": {"kubernetes": {"services": ["vllm"]}}}}),
    "discovery-pods": ("Role", {"config": {"discovery": {"kubernetes": {"pods": "app=vllm"}}}}),
    "picker": ("Service", {"ports": {"picker": 9002}}),
    "snapshot-claim": ("Deployment", {"snapshot": {"existingClaim": "tailroute-state"}}),
}


def with_components(overlay, components, folder):
    """As an operator's own overlay takes them up; kustomize knows no absolute paths."""
    root = "../" * len(folder.parts[1:]) + f"{KUSTOMIZE}"
    listed = ", ".join(f"{root}/components/{component}" for component in components)
    (folder / "kustomization.yaml").write_text(f"resources: [{root}/overlays/{overlay}]\ncomponents: [{listed}]\n")
    return by_name(kustomize(folder))


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_is_what_the_charts_option_renders(component, tmp_path):
    kind, values = COMPONENTS[component]
    ours, charts = with_components("standalone", [component], tmp_path), by_name(chart("standalone", **values))
    assert ours.keys() == charts.keys()
    assert ours[kind, "tailroute"] == charts[kind, "tailroute"]
    if kind == "Role":
        assert ours["RoleBinding", "tailroute"] == charts["RoleBinding", "tailroute"]
        tokens = [one["Deployment", "tailroute"]["spec"]["template"]["spec"]["automountServiceAccountToken"] for one in (ours, charts)]
        assert tokens == [True, True]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_claim_is_mounted_in_each_shape_as_the_chart_does(shape, tmp_path):
    kind, values = COMPONENTS["snapshot-claim"]
    ours, charts = with_components(shape, ["snapshot-claim"], tmp_path), by_name(chart(shape, **values))
    assert ours[kind, "tailroute"] == charts[kind, "tailroute"]


def test_the_pickers_port_is_open_in_the_pod_and_for_gateways_as_in_the_chart(tmp_path):
    ours = with_components("standalone", ["network-policy", "picker"], tmp_path)
    charts = by_name(chart("standalone", ports={"picker": 9002}, networkPolicy={"enabled": True}))
    for kind in ("Deployment", "NetworkPolicy"):
        assert ours[kind, "tailroute"] == charts[kind, "tailroute"], kind
    # What the component leaves to the operator's tailroute.toml.
    picker = charts["ConfigMap", "tailroute"]["files"]["tailroute.toml"]["endpoint_picker"]
    head = (KUSTOMIZE / "components" / "picker" / "kustomization.yaml").read_text()
    assert picker == {"listen": "0.0.0.0:9002"}
    assert f'`[endpoint_picker]` with\n# `listen = "{picker["listen"]}"`' in head


def test_every_component_is_compared():
    assert {path.name for path in (KUSTOMIZE / "components").iterdir()} == set(COMPONENTS)
    assert {path.name for path in (KUSTOMIZE / "overlays").iterdir()} == set(SHAPES)
