"""What is rendered, by Kubernetes' own schemas of several versions, and by checkov's rules."""

import json
import re
import sys
import tomllib
import pathlib

import kubernetes_validate
import pytest
import yaml

from rendered import CASES, KUSTOMIZE, ROOT, SHAPES, chart, kustomize, router, run

HERE = pathlib.Path(__file__).parent

# The oldest that the chart takes, and the newest that the schemas know.
VERSIONS = ["1.30", kubernetes_validate.latest_version()]

# Custom resources, which test_chart.py checks field by field.
FOREIGN = {"monitoring.coreos.com/v1", "gateway.networking.k8s.io/v1"}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("case", CASES)
def test_kubernetes_knows_every_field_of_the_charts(case, version):
    known = [one for one in chart(case) if one["apiVersion"] not in FOREIGN]
    assert len(known) >= 7
    for document in known:
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("shape", SHAPES)
def test_kubernetes_knows_every_field_of_kustomizes(shape):
    for document in kustomize(KUSTOMIZE / "overlays" / shape):
        kubernetes_validate.validate(document, VERSIONS[-1], strict=True)


def test_a_field_that_kubernetes_does_not_know_is_found():
    documents = chart("standalone")
    deployment = next(one for one in documents if one["kind"] == "Deployment")
    wrong = json.loads(json.dumps(deployment))
    wrong["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="readinesProbe"):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_the_chart_takes_the_versions_that_are_checked():
    wanted = yaml.safe_load((ROOT / "deploy/helm/tailroute/Chart.yaml").read_text())["kubeVersion"]
    assert wanted == f">={VERSIONS[0]}.0-0"


@pytest.fixture(scope="session")
def failed_checks(tmp_path_factory):
    """What checkov finds in every shape, and in the Dockerfile: `check` and `where`."""
    folder = tmp_path_factory.mktemp("checkov")
    for case in CASES:
        # What is found in a pod is to be of the router: so the app beside it is as careful.
        values = {}
        if case.endswith("sidecar"):
            app = {key: value for key, value in router(chart("standalone")).items() if key != "volumeMounts"}
            app |= {"name": "gateway", "image": "registry.example.com/gateway@sha256:" + "a" * 64, "imagePullPolicy": "Always"}
            values = {"app": {"containers": [app], "podSecurityContext": {"runAsNonRoot": True}}}
        (folder / f"{case}.yaml").write_text(yaml.safe_dump_all(chart(case, **values)))
    (folder / "Dockerfile").write_text((ROOT / "deploy" / "Dockerfile").read_text())
    options = "--framework kubernetes dockerfile --skip-download --quiet --compact -o json"
    done = run(pathlib.Path(sys.executable).with_name("checkov"), "-d", folder, *options.split())
    reports = json.loads(done.stdout)
    assert {report["check_type"] for report in reports} == {"kubernetes", "dockerfile"}
    assert all(report["summary"]["parsing_errors"] == 0 for report in reports)
    assert sum(report["summary"]["passed"] for report in reports) > 500
    found = []
    for report in reports:
        for failed in report["results"]["failed_checks"]:
            case = pathlib.Path(failed["file_path"]).stem
            found.append((failed["check_id"], f"{case} {failed['resource']}", failed["check_name"]))
    return found


def explanations():
    return tomllib.loads((HERE / "checkov.toml").read_text())["explained"]


def explains(explanation, check, where):
    return explanation["check"] == check and re.search(explanation["where"], where)


def test_what_checkov_finds_is_explained(failed_checks):
    left = [
        f"{check} ({name}) at {where}"
        for check, where, name in failed_checks
        if not any(explains(one, check, where) for one in explanations())
    ]
    assert left == []


def test_nothing_is_explained_that_checkov_does_not_find(failed_checks):
    needless = [one for one in explanations() if not any(explains(one, check, where) for check, where, _ in failed_checks)]
    assert needless == []
    assert all(one["reason"].endswith(".") for one in explanations())
