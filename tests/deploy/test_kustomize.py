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
    "snapshot-claim": ("Deployment", {"snapshot": {"existingClaim": "tailroute-state"}}),
}


def with_component(overlay, component, folder):
    """As an operator's own overlay takes it up; kustomize knows no absolute paths."""
    up = "../" * len(folder.parts[1:])
    (folder / "kustomization.yaml").write_text(
        f"resources: [{up}{KUSTOMIZE}/overlays/{overlay}]\ncomponents: [{up}{KUSTOMIZE}/components/{component}]\n"
    )
    return by_name(kustomize(folder))


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_is_what_the_charts_option_renders(component, tmp_path):
    kind, values = COMPONENTS[component]
    ours, charts = with_component("standalone", component, tmp_path), by_name(chart("standalone", **values))
    assert ours.keys() == charts.keys()
    assert ours[kind, "tailroute"] == charts[kind, "tailroute"]
    if kind == "Role":
        assert ours["RoleBinding", "tailroute"] == charts["RoleBinding", "tailroute"]
        tokens = [one["Deployment", "tailroute"]["spec"]["template"]["spec"]["automountServiceAccountToken"] for one in (ours, charts)]
        assert tokens == [True, True]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_claim_is_mounted_in_each_shape_as_the_chart_does(shape, tmp_path):
    kind, values = COMPONENTS["snapshot-claim"]
    ours, charts = with_component(shape, "snapshot-claim", tmp_path), by_name(chart(shape, **values))
    assert ours[kind, "tailroute"] == charts[kind, "tailroute"]


def test_every_component_is_compared():
    assert {path.name for path in (KUSTOMIZE / "components").iterdir()} == set(COMPONENTS)
    assert {path.name for path in (KUSTOMIZE / "overlays").iterdir()} == set(SHAPES)
