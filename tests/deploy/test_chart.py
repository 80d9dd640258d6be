"""The chart: what it renders in each shape."""

import json
import re
import tarfile

import pytest
import yaml

from rendered import CASES, CHART, NAMESPACE, ROOT, SHAPES, Refused, chart, contents, helm, objects, only, pod, router, values_of

SIDECARS = ["native-sidecar", "plain-sidecar"]


@pytest.mark.parametrize("case", CASES)
def test_helm_lints_it(case):
    told = helm("lint", CHART, "--namespace", NAMESPACE, "--strict", "-f", values_of(case))
    assert "1 chart(s) linted, 0 chart(s) failed" in told


def test_a_packaged_chart_renders_the_same(tmp_path):
    """Rules and boards are links into deploy/observability: the package has to hold what they lead to."""
    helm("package", CHART, "--destination", tmp_path)
    package = next(tmp_path.glob("*.tgz"))
    told = helm("template", "tailroute", package, "--namespace", NAMESPACE, "-f", values_of("everything"))
    assert objects(told) == chart("everything")
    with tarfile.open(package) as files:
        names = {name.removeprefix("tailroute/") for name in files.getnames()}
    assert "files/tailroute.rules.yml" in names
    assert not [name for name in names if name.startswith("ci/")]


# A chart of somebody's app, with a Deployment of its own, as docs/kubernetes.md shows it.
APPS_OWN = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: gateway
spec:
  selector:
    matchLabels: {app.kubernetes.io/name: gateway, app.kubernetes.io/instance: {{ .Release.Name }}}
  template:
    metadata:
      labels:
        app.kubernetes.io/name: gateway
        app.kubernetes.io/instance: {{ .Release.Name }}
        app.kubernetes.io/component: gateway
        {{- include "tailroute.podLabels" .Subcharts.tailroute | nindent 8 }}
      annotations:
        {{- include "tailroute.podAnnotations" .Subcharts.tailroute | nindent 8 }}
    spec:
      terminationGracePeriodSeconds: {{ include "tailroute.graceSeconds" .Subcharts.tailroute }}
      initContainers:
        {{- include "tailroute.container" .Subcharts.tailroute | nindent 8 }}
      containers:
        - name: gateway
          image: registry.example.com/gateway:1.0.0
      volumes:
        {{- include "tailroute.volumes" .Subcharts.tailroute | nindent 8 }}
"""


APPS_LABELS = {"app.kubernetes.io/name": "gateway", "app.kubernetes.io/instance": "tailroute", "app.kubernetes.io/component": "gateway"}


@pytest.fixture
def apps_chart(tmp_path):
    """What a chart renders that has this one as a dependency, with `values` for it."""
    (tmp_path / "templates").mkdir()
    (tmp_path / "charts").mkdir()
    (tmp_path / "charts" / "tailroute").symlink_to(CHART)
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: gateway\nversion: 1.0.0\n")
    (tmp_path / "templates" / "deployment.yaml").write_text(APPS_OWN)

    def rendered(**values):
        own = yaml.safe_load(values_of("native-sidecar").read_text()) | {"app": {"existing": True}} | values
        (tmp_path / "values.yaml").write_text(yaml.safe_dump({"tailroute": own}))
        return objects(helm("template", "tailroute", tmp_path, "--namespace", NAMESPACE))

    return rendered


def test_the_routers_parts_go_into_the_pod_of_another_chart(apps_chart):
    documents, alone = apps_chart(), chart("native-sidecar")
    assert router(documents) == router(alone)
    assert pod(documents)["volumes"] == pod(alone)["volumes"]
    assert pod(documents)["terminationGracePeriodSeconds"] == pod(alone)["terminationGracePeriodSeconds"]
    template, of_alone = (only(some, "Deployment")["spec"]["template"]["metadata"] for some in (documents, alone))
    assert template["annotations"].items() <= of_alone["annotations"].items()
    kinds = [one["kind"] for one in documents]
    # Two budgets for one pod would keep it from ever being evicted, and the service account is the app's.
    assert not {"PodDisruptionBudget", "ServiceAccount"} & set(kinds)
    assert {"ConfigMap", "Secret", "Service"} <= set(kinds)


def test_the_pod_of_another_chart_keeps_its_own_labels_and_is_found_by_one_of_the_routers(apps_chart):
    documents = apps_chart(monitoring={"kind": "PodMonitor"})
    labels = only(documents, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert labels == APPS_LABELS | {"tailroute.io/router": "tailroute"}
    monitor = only(documents, "PodMonitor")["spec"]
    assert only(documents, "Service", "tailroute-admin")["spec"]["selector"] == {"tailroute.io/router": "tailroute"}
    assert monitor["selector"]["matchLabels"] == {"tailroute.io/router": "tailroute"}
    # The alert that a router is gone goes by the job's name.
    assert "tailroute" in labels[monitor["jobLabel"]]


def test_the_role_is_bound_to_the_service_account_of_the_other_charts_pod(apps_chart):
    watching = yaml.safe_load(values_of("native-sidecar").read_text())["config"] | {"discovery": {"kubernetes": {"services": ["vllm"]}}}
    documents = apps_chart(config=watching, serviceAccount={"name": "gateway"})
    binding = only(documents, "RoleBinding")
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "gateway", "namespace": NAMESPACE}]
    assert only(documents, "Role")["rules"][0]["resources"] == ["endpointslices"]
    assert "ServiceAccount" not in {one["kind"] for one in documents}
    with pytest.raises(Refused) as refused:
        apps_chart(config=watching)
    assert "serviceAccount.name: missing; with app.existing" in str(refused.value)
    assert "Role" not in {one["kind"] for one in apps_chart(config=watching, rbac={"create": False})}


@pytest.mark.parametrize("shape", SHAPES)
def test_who_writes_to_a_claim_is_in_a_group_that_may(shape):
    """A claim is root's, and the router is nobody."""
    claim = {"snapshot": {"existingClaim": "state"}}
    documents = chart(shape, **claim)
    volume = next(one for one in pod(documents)["volumes"] if one["name"] == "tailroute-state")
    assert volume["persistentVolumeClaim"] == {"claimName": "state"}
    assert pod(documents)["securityContext"]["fsGroup"] == 65532
    if shape in SIDECARS:
        assert "securityContext" not in pod(chart(shape)), "the rest of it is the app's"
        apps = chart(shape, **claim, app={"podSecurityContext": {"fsGroup": 2000, "runAsNonRoot": True}})
        assert pod(apps)["securityContext"] == {"fsGroup": 2000, "runAsNonRoot": True}


def test_the_charts_version_is_the_routers():
    version = re.search(r'^version = "(.+)"', (ROOT / "Cargo.toml").read_text(), re.M).group(1)
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == version


@pytest.mark.parametrize("shape", SHAPES)
def test_a_stop_has_time_for_all_of_it(shape):
    """The kubelet counts from the pod's deletion, in a native sidecar the app's own end as well, and then sends SIGKILL."""
    values = {"drain": {"delaySeconds": 7, "timeoutSeconds": 400}}
    if shape in SIDECARS:
        values["app"] = {"terminationSeconds": 60}
    documents = chart(shape, **values)
    # The router waits itself, and says meanwhile that connections end: a preStop would keep the signal from it.
    assert "lifecycle" not in router(documents)
    before = 60 if shape == "native-sidecar" else 0
    assert pod(documents)["terminationGracePeriodSeconds"] == 7 + 400 + 15 + before
    text = only(documents, "ConfigMap", "tailroute")["data"]["tailroute.toml"]
    assert "drain_delay_s = 7\ndrain_timeout_s = 400\n" in text


def test_a_plain_sidecar_does_not_shorten_the_apps_own_time():
    documents = chart("plain-sidecar", drain={"timeoutSeconds": 10}, app={"terminationSeconds": 600})
    assert pod(documents)["terminationGracePeriodSeconds"] == 600


@pytest.mark.parametrize("shape", SHAPES)
def test_nobody_is_sent_to_a_router_before_it_is_ready_nor_is_one_killed_for_its_workers(shape):
    container = router(chart(shape))
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "admin"}
    for alive in ("startupProbe", "livenessProbe"):
        assert container[alive]["httpGet"] == {"path": "/livez", "port": "admin"}


def test_a_native_sidecar_is_an_init_container_that_stays_and_comes_first():
    spec = pod(chart("native-sidecar", app={"initContainers": [{"name": "migrate", "image": "m"}]}))
    assert [(one["name"], one.get("restartPolicy")) for one in spec["initContainers"]] == [
        ("tailroute", "Always"),
        ("migrate", None),
    ]
    assert [one["name"] for one in spec["containers"]] == ["gateway"]


def test_a_plain_sidecar_is_a_container_like_another():
    spec = pod(chart("plain-sidecar"))
    assert "initContainers" not in spec
    assert [(one["name"], one.get("restartPolicy")) for one in spec["containers"]] == [("gateway", None), ("tailroute", None)]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_data_port_is_reached_by_whom_it_is_for(shape):
    documents = chart(shape)
    text = only(documents, "ConfigMap", "tailroute")["data"]["tailroute.toml"]
    services = {one["metadata"]["name"] for one in documents if one["kind"] == "Service"}
    if shape in SIDECARS:
        assert 'listen = "127.0.0.1:8080"' in text and services == {"tailroute-admin"}
    else:
        assert 'listen = "0.0.0.0:8080"' in text and services == {"tailroute", "tailroute-admin"}
        assert only(documents, "Service", "tailroute")["spec"]["ports"][0]["targetPort"] == "http"


@pytest.mark.parametrize("shape", SHAPES)
def test_the_router_may_do_nothing_in_its_container(shape):
    container = router(chart(shape))
    assert container["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    writable = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
    assert writable == ["/var/lib/tailroute"]


@pytest.mark.parametrize("case", CASES)
def test_what_selects_pods_selects_these_and_not_the_tests(case):
    documents = chart(case)
    labels = only(documents, "Deployment")["spec"]["template"]["metadata"]["labels"]
    tested = only(documents, "Pod")["metadata"]["labels"]

    def selects(wanted, given):
        return all(given.get(key) == value for key, value in wanted.items())

    selectors = [only(documents, "Deployment")["spec"]["selector"]["matchLabels"]]
    selectors += [one["spec"]["selector"] for one in documents if one["kind"] == "Service"]
    selectors += [one["spec"]["selector"]["matchLabels"] for one in documents if one["kind"] == "PodDisruptionBudget"]
    selectors += [one["spec"]["podSelector"]["matchLabels"] for one in documents if one["kind"] == "NetworkPolicy"]
    selectors += [one["labelSelector"]["matchLabels"] for one in pod(documents)["topologySpreadConstraints"]]
    assert len(selectors) >= 4
    for selector in selectors:
        assert selects(selector, labels) and not selects(selector, tested), selector


def test_the_test_hook_reads_what_the_router_reads():
    documents = chart("everything")
    tested = only(documents, "Pod")
    assert tested["metadata"]["annotations"]["helm.sh/hook"] == "test"
    container = tested["spec"]["containers"][0]
    assert container["args"] == ["check", router(documents)["args"][-1]]
    assert container["image"] == router(documents)["image"]
    own = [mount for mount in router(documents)["volumeMounts"] if mount.get("readOnly")]
    assert container["volumeMounts"] == own


@pytest.mark.parametrize("kind, component", [("PodMonitor", "router"), ("ServiceMonitor", "admin")])
def test_prometheus_finds_the_admin_port(kind, component):
    documents = chart("standalone", monitoring={"kind": kind, "labels": {"release": "prometheus"}})
    monitor = only(documents, kind)
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    ends = monitor["spec"]["podMetricsEndpoints" if kind == "PodMonitor" else "endpoints"]
    assert ends == [{"port": "admin", "path": "/metrics", "interval": "15s"}]
    wanted = monitor["spec"]["selector"]["matchLabels"]
    if kind == "PodMonitor":
        labels = only(documents, "Deployment")["spec"]["template"]["metadata"]["labels"]
    else:
        labels = only(documents, "Service", "tailroute-admin")["metadata"]["labels"]
    assert wanted["app.kubernetes.io/component"] == component
    assert wanted.items() <= labels.items()
    # The alert that a router is gone goes by the job's name.
    assert "tailroute" in labels[monitor["spec"]["jobLabel"]]


def test_rules_and_boards_are_those_of_the_repository():
    documents = chart("everything", monitoring={"runbookUrl": "https://tailroute.example.com/docs/runbooks"})
    observability = ROOT / "deploy" / "observability"
    rules = yaml.safe_load((observability / "prometheus" / "tailroute.rules.yml").read_text())
    assert only(documents, "PrometheusRule")["spec"] == rules
    boards = {}
    for one in documents:
        if one["kind"] == "ConfigMap" and one["metadata"]["labels"].get("grafana_dashboard") == "1":
            boards |= one["data"]
    wanted = {path.name: path.read_text().strip() for path in (observability / "grafana").glob("*.json")}
    assert {name: text.strip() for name, text in boards.items()} == wanted


def test_alerts_link_to_the_runbooks_where_they_are_published():
    at = "https://wiki.example.net/tailroute"
    groups = only(chart("everything", monitoring={"runbookUrl": f"{at}/"}), "PrometheusRule")["spec"]["groups"]
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    assert alerts
    for alert in alerts:
        assert alert["annotations"]["runbook_url"] == f"{at}/{alert['alert']}.md"
    without = only(chart("everything"), "PrometheusRule")["spec"]["groups"]
    rules = [rule for group in without for rule in group["rules"]]
    assert len(rules) == sum(len(group["rules"]) for group in groups)
    assert not [rule for rule in rules if "runbook_url" in rule.get("annotations", {})]


WATCHED = [
    ({"services": ["vllm"]}, {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"]}, "tailroute"),
    ({"pods": "app=vllm", "namespace": "inference"}, {"apiGroups": [""], "resources": ["pods"]}, "inference"),
]


@pytest.mark.parametrize("watch, rule, namespace", WATCHED, ids=["services", "pods"])
def test_a_role_allows_to_look_at_what_is_watched_and_nothing_else(watch, rule, namespace):
    documents = chart("standalone", config={"discovery": {"kubernetes": watch}})
    role, binding = only(documents, "Role"), only(documents, "RoleBinding")
    assert role["rules"] == [rule | {"verbs": ["get", "list", "watch"]}]
    assert role["metadata"]["namespace"] == binding["metadata"]["namespace"] == namespace
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "tailroute", "namespace": "tailroute"}]
    assert pod(documents)["automountServiceAccountToken"] is True


def test_nothing_is_allowed_that_is_not_watched():
    elsewhere = {"kubernetes": {"services": ["vllm"], "api_url": "http://127.0.0.1:8001"}}
    for discovery in ({}, {"dns": {"srv": ["_http._tcp.vllm"]}}, elsewhere):
        documents = chart("standalone", config={"discovery": discovery})
        kinds = {one["kind"] for one in documents}
        assert not kinds & {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
        assert pod(documents)["automountServiceAccountToken"] is False
    own = chart("standalone", config={"discovery": {"kubernetes": {"services": ["vllm"]}}}, rbac={"create": False})
    assert "Role" not in {one["kind"] for one in own}
    assert pod(own)["automountServiceAccountToken"] is True


def test_workers_may_be_found_instead_of_written_down():
    found = {"image": {"repository": "r"}, "config": {"discovery": {"kubernetes": {"services": ["vllm"]}}}}
    assert "[discovery.kubernetes]" in contents(only(chart(None, **found), "ConfigMap"))["tailroute.toml"]


def test_ports_are_named_by_who_may_reach_them():
    policy = only(chart("everything"), "NetworkPolicy")["spec"]
    http, admin = policy["ingress"]
    assert (http["ports"][0]["port"], http["from"][0]["namespaceSelector"]["matchLabels"]) == ("http", {"team": "apps"})
    assert admin["ports"][0]["port"] == "admin"
    assert {port["port"] for rule in policy["egress"] for port in rule["ports"]} == {53, 8443}
    assert only(chart("standalone", networkPolicy={"enabled": True}), "NetworkPolicy")["spec"]["policyTypes"] == ["Ingress"]


@pytest.mark.parametrize("tls, protocol", [(False, "kubernetes.io/h2c"), (True, "grpc")])
def test_gateways_ask_at_a_port_of_their_own(tls, protocol):
    documents = chart("gateway", config={"endpoint_picker": {"tls": tls}})
    assert {"name": "picker", "containerPort": 9002, "protocol": "TCP"} in router(documents)["ports"]
    _, port = only(documents, "Service", "tailroute")["spec"]["ports"]
    assert (port["port"], port["targetPort"], port["appProtocol"]) == (9002, "picker", protocol)
    text = contents(only(documents, "ConfigMap", "tailroute"))["tailroute.toml"]
    assert 'listen = "0.0.0.0:9002"' in text and "fallbacks = 1" in text
    asking = only(documents, "NetworkPolicy")["spec"]["ingress"][2]
    assert asking["ports"] == [{"port": "picker", "protocol": "TCP"}]
    assert asking["from"][0]["namespaceSelector"]["matchLabels"] == {"team": "gateways"}
    # A sidecar's is for the gateway in its own pod.
    beside = chart("native-sidecar", ports={"picker": 9002})
    assert 'listen = "127.0.0.1:9002"' in contents(only(beside, "ConfigMap", "tailroute"))["tailroute.toml"]
    assert "picker" not in {port["name"] for port in router(beside)["ports"]}


def test_extras_reach_the_container_and_the_pod():
    documents = chart("everything")
    container, spec = router(documents), pod(documents)
    assert {"name": "TAILROUTE_LOG__LEVEL", "value": "debug"} in container["env"]
    assert {"name": "scratch", "mountPath": "/scratch"} in container["volumeMounts"]
    assert {"name": "scratch", "emptyDir": {}} in spec["volumes"]
    assert [one["name"] for one in spec["containers"]] == ["tailroute", "shipper"]
    assert only(documents, "Deployment")["metadata"]["annotations"] == {"example.com/owner": "inference"}


def test_openshift_assigns_the_user_and_the_group():
    documents = chart("standalone", securityContext={"runAsUser": None, "runAsGroup": None}, podSecurityContext={"fsGroup": None})
    assert not {"runAsUser", "runAsGroup"} & set(router(documents)["securityContext"])
    assert router(documents)["securityContext"]["runAsNonRoot"] is True
    assert "fsGroup" not in pod(documents)["securityContext"]
    claim = {"snapshot": {"existingClaim": "state"}, "securityContext": {"runAsGroup": None}}
    assert "securityContext" not in pod(chart("plain-sidecar", **claim))


def test_an_autoscaler_owns_the_number_of_replicas():
    documents = chart("standalone", autoscaling={"enabled": True})
    assert "replicas" not in only(documents, "Deployment")["spec"]
    scaler = only(documents, "HorizontalPodAutoscaler")["spec"]
    assert scaler["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "tailroute"}
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (2, 4)


def test_ingress_and_route_lead_to_the_data_port():
    documents = chart("everything")
    rule = only(documents, "Ingress")["spec"]["rules"][0]
    backend = rule["http"]["paths"][0]["backend"]["service"]
    assert (rule["host"], backend) == ("llm.example.com", {"name": "tailroute", "port": {"name": "http"}})
    route = only(documents, "HTTPRoute")["spec"]
    assert route["rules"][0]["backendRefs"] == [{"name": "tailroute", "port": 443}]
    assert route["parentRefs"] == [{"name": "public", "namespace": "gateways"}]


def test_notes_say_where_it_is_and_what_is_open():
    """Of an install that talks to no cluster: `helm template` leaves the notes out."""
    options = ["--namespace", NAMESPACE, "--dry-run=client", "-f", values_of("standalone")]
    told = helm("install", "tailroute", CHART, *options)
    notes = told[told.index("NOTES:") :]
    assert "http://tailroute.tailroute/v1" in notes and "No admin tokens: the admin port serves only probes and metrics" in notes
