"""What deploy/observability promises: boards that Grafana reads and that show something, alerts that fire, links that lead on.

    scripts/observability test
"""

import json
import math
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import urllib.request

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

import reason
from fleet import OBSERVABILITY, ROOT, Fleet, Processes, free_ports, get, until

BOARDS = sorted((OBSERVABILITY / "grafana").glob("*.json"))
RULES = OBSERVABILITY / "prometheus" / "tailroute.rules.yml"
BINARIES = pathlib.Path(sys.argv.pop(1)).resolve()


def panels(board):
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def queries():
    """Each panel's queries, with the boards' variables as they are when everything is chosen."""
    for path in BOARDS:
        for panel in panels(json.loads(path.read_text())):
            for target in panel["targets"]:
                query = target["expr"].replace("$__rate_interval", "1m")
                yield f"{path.name}: {panel['title']}", re.sub(r"\$\w+", ".*", query)


def lost(given, read, path=""):
    """What of a document is not there any more after it was read and written again."""
    if isinstance(given, dict) and isinstance(read, dict):
        for key, value in given.items():
            yield from lost(value, read[key], f"{path}.{key}") if key in read else [f"{path}.{key}"]
    elif isinstance(given, list) and isinstance(read, list) and len(given) == len(read):
        for at, (one, other) in enumerate(zip(given, read)):
            yield from lost(one, other, f"{path}[{at}]")
    elif given != read:
        yield f"{path}: {given!r} was read as {read!r}"


def linted(page):
    """What `promtool check metrics` says of a page: its exit code and its output."""
    done = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def alerts():
    return re.findall(r"- alert: (\w+)", RULES.read_text())


class Written(unittest.TestCase):
    """What can be said without running anything."""

    def test_boards_are_what_grafanas_own_types_read(self):
        register_default_plugins()
        self.assertGreaterEqual(len(BOARDS), 2)
        for path in BOARDS:
            given = json.loads(path.read_text())
            read = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(given)))
            self.assertEqual(list(lost(given, read)), [], path.name)

    def test_panels_are_explained_and_none_covers_another(self):
        for path in BOARDS:
            taken = set()
            for panel in json.loads(path.read_text())["panels"]:
                at = panel["gridPos"]
                cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
                self.assertFalse(cells & taken, f"{path.name}: {panel['title']}")
                self.assertLessEqual(at["x"] + at["w"], 24, panel["title"])
                taken |= cells
                self.assertTrue(panel["type"] == "row" or panel["description"].endswith("."), panel["title"])

    def test_every_metric_that_is_asked_for_is_documented(self):
        known = set(re.findall(r"^\| `(\w+)`", (ROOT / "docs" / "metrics.md").read_text(), re.M))
        texts = [*queries(), ("rules", RULES.read_text())]
        for where, text in texts:
            for name in re.findall(r"\b(?:tailroute|gen_ai|process)_\w+(?=[\[{ )\n])", text):
                base = re.sub(r"_(bucket|sum|count)$", "", name)
                self.assertTrue({name, base} & known or name.startswith("gen_ai_token"), f"{where}: {name}")

    def test_every_alert_has_a_runbook_and_every_runbook_an_alert(self):
        pages = {path.stem: path.read_text() for path in (ROOT / "docs" / "runbooks").glob("*.md")}
        listed = pages.pop("README")
        self.assertEqual(set(alerts()), set(pages))
        rules = RULES.read_text()
        for alert, page in pages.items():
            self.assertTrue(page.startswith(f"# {alert}\n"), alert)
            for heading in ("**What it means.**", "**Where to look", "hat to do"):
                self.assertIn(heading, page, alert)
            self.assertIn(f"runbook_url: {reason.PUBLISHED}docs/runbooks/{alert}.md\n", rules)
            self.assertIn(f"({alert}.md)", listed)

    def test_promtool_has_nothing_to_say_of_any_documented_metric(self):
        """Also of those that this fleet does not have, such as the bus's."""
        row = re.compile(r"^\| `(\w+)` \| (counter|gauge|histogram)[^|]*\|[^|]*\| ([^|]*) \| \d+ \| (.*?) \|[^|]*\|$", re.M)
        rows = row.findall((ROOT / "docs" / "metrics.md").read_text())
        self.assertGreater(len(rows), 80)
        page = ""
        for name, kind, labels, meaning in rows:
            labels = [f'{label}="x"' for label in re.findall(r"(?:^|; )`(\w+)`", labels)]
            page += f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n"
            if kind == "histogram":
                bucket = ",".join([*labels, 'le="+Inf"'])
                page += f"{name}_bucket{{{bucket}}} 1\n{name}_sum{{{','.join(labels)}}} 1\n{name}_count{{{','.join(labels)}}} 1\n"
            else:
                page += f"{name}{{{','.join(labels)}}} 1\n"
        self.assertEqual(linted(page), (0, "", ""))

    def test_links_lead_to_pages_and_filters_that_the_console_has(self):
        console = ROOT / "router" / "admin" / "console" / "pages"
        pages = {path for file in console.glob("*.js") for path in re.findall(r"^  path: '(\w+)'", file.read_text(), re.M)}
        fresh = re.search(r"const FRESH = \{(.*)\}", (console / "decisions.js").read_text()).group(1)
        texts = [RULES.read_text(), *(path.read_text() for path in BOARDS)]
        links = [link for text in texts for link in re.findall(r"http://[^\"\n]*?/console/#/([^\"\n]*)", text)]
        self.assertGreater(len(links), len(BOARDS))
        for page, _, query in (link.partition("?") for link in links):
            self.assertIn(page, pages)
            for name in re.findall(r"(\w+)=", query):
                self.assertIn(f"{name}: ", fresh)

    def test_rules_and_routes_are_what_prometheus_and_alertmanager_read(self):
        prometheus, alertmanager = OBSERVABILITY / "prometheus", OBSERVABILITY / "alertmanager"
        routes = str(alertmanager / "alertmanager.example.yml")
        for command in (
            ["promtool", "check", "rules", str(RULES)],
            ["promtool", "check", "config", "--syntax-only", str(prometheus / "prometheus.example.yml")],
            ["promtool", "test", "rules", str(prometheus / "tailroute.rules.test.yml")],
            ["amtool", "check-config", routes],
        ):
            done = subprocess.run(command, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout}{done.stderr}")
        for severity, receiver in (("page", "pager"), ("ticket", "tickets")):
            command = ["amtool", "config", "routes", "test", f"--config.file={routes}", f"severity={severity}"]
            routed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            self.assertEqual(routed.strip(), receiver)
        tested = (prometheus / "tailroute.rules.test.yml").read_text()
        for alert in alerts():
            self.assertIn(f"alertname: {alert}\n", tested)


class Inhibited(unittest.TestCase):
    """What a real Alertmanager keeps quiet about, by the example's rules."""

    def test_a_router_that_is_down_silences_itself_and_neither_the_job_nor_its_neighbours(self):
        routes = OBSERVABILITY / "alertmanager" / "alertmanager.example.yml"
        with tempfile.TemporaryDirectory() as folder, Processes(folder) as processes:
            [port] = free_ports(1)
            # Debian's name for it.
            program = shutil.which("prometheus-alertmanager") or "alertmanager"
            processes.start(
                "alertmanager", program, f"--config.file={routes}", f"--storage.path={folder}/alerts",
                f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=",
            )
            url = f"http://127.0.0.1:{port}"
            until("Alertmanager is ready", lambda: get(f"{url}/-/ready"))
            alert = lambda name, **labels: {"labels": {"alertname": name, "job": "tailroute", "severity": "page", **labels}}
            alerts = [
                alert("TailrouteDown", instance="r1"),
                alert("TailrouteTtftBudgetBurnsFast", instance="r1"),
                alert("TailrouteTtftBudgetBurns", instance="r1"),
                alert("TailrouteBreakerStorm", instance="r1"),
                alert("TailrouteBreakerStorm", instance="r2"),
            ]
            body = json.dumps(alerts).encode()
            request = urllib.request.Request(f"{url}/api/v2/alerts", body, {"content-type": "application/json"})
            urllib.request.urlopen(request, timeout=10).close()

            def quiet():
                told = json.load(urllib.request.urlopen(f"{url}/api/v2/alerts", timeout=10))
                if len(told) < len(alerts) or any(one["status"]["state"] == "unprocessed" for one in told):
                    return None
                return {
                    (one["labels"]["alertname"], one["labels"].get("instance"))
                    for one in told if one["status"]["inhibitedBy"]
                }

            silenced = until("all alerts are processed", quiet)
            # The slower burn says nothing that the faster one does not.
            self.assertEqual(silenced, {("TailrouteBreakerStorm", "r1"), ("TailrouteTtftBudgetBurns", "r1")})


class Running(unittest.TestCase):
    """A fleet of which one engine becomes slow, watched by Prometheus."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.processes = Processes(cls.folder.name).__enter__()
        try:
            cls.fleet = Fleet(cls.processes, BINARIES)
        except BaseException:
            cls.tearDownClass()
            raise

    @classmethod
    def tearDownClass(cls):
        cls.processes.__exit__()
        for log in pathlib.Path(cls.folder.name).glob("*.log"):
            print(f"--- {log.name}\n{log.read_text()[-1500:]}", file=sys.stderr) if "-v" in sys.argv else None
        cls.folder.cleanup()

    def shows(self, query):
        samples = self.fleet.query(query)
        return any(math.isfinite(float(sample["value"][1])) for sample in samples)

    def test_1_every_panel_shows_something(self):
        empty = until_shown(self.fleet, self.shows)
        self.assertEqual(empty, [])

    def test_2_a_slow_engine_leads_from_the_alert_to_a_kept_trace_and_its_explanation(self):
        fleet = self.fleet
        fleet.slow(0, 200.0)
        with reason.load(fleet):
            alert = reason.fired(fleet)
            found = reason.follow(alert, BINARIES)
        print(f"from the firing alert to the reason: {found.seconds:.1f} s; cause {found.cause}", file=sys.stderr)
        self.assertLessEqual(found.seconds, reason.LIMIT_S)
        self.assertIn(found.cause, ("engine", "queue"))

        late = [each for each in json.loads(get(alert["annotations"]["explain"]))["decisions"] if each["outcome"]["cause"]]
        slow = [found for found in late if found["worker"] == "engine-0"]
        self.assertGreater(len(slow), len(late) / 2, late)
        by_cause = fleet.query("sum by (cause) (tailroute_slo_violations_total) > 0")
        # It is the engine until it is found to have become slow.
        self.assertTrue({"engine", "slow_worker"} & {sample["metric"]["cause"] for sample in by_cause}, by_cause)

        # ... each of which names its trace, that was kept and whose spans say where the time went, and why ...
        for decision in slow[:5]:
            trace = self.trace(decision["trace"])
            own, attempt, prefill = self.parts(trace)
            self.assertEqual(own.attributes["tailroute.kept"], "objective", trace)
            self.assertEqual(own.attributes["tailroute.violation.cause"], decision["outcome"]["cause"], trace)
            self.assertEqual(attempt.attributes["tailroute.worker"], "engine-0", trace)
            self.assertGreater(prefill.milliseconds, own.attributes["tailroute.ttft_ms"] / 2, trace)
            # ... and names the request, which is explained.
            request = own.attributes["tailroute.request_id"]
            one = json.loads(get(f"{fleet.admin}/admin/v1/decisions/{request}"))["decisions"][0]
            self.assertEqual(one["decision"], attempt.attributes["tailroute.decision"], trace)
            self.assertEqual(one["outcome"]["cause"], decision["outcome"]["cause"])
            parts = one["outcome"]["parts"]
            self.assertEqual(max(parts, key=parts.get), f"{one['outcome']['cause']}_ms", parts)
        self.assertTrue({"engine", "slow_worker"} & {each["outcome"]["cause"] for each in slow}, slow)

    def test_3_an_exemplar_of_a_late_turn_leads_to_its_trace_and_its_decision(self):
        fleet = self.fleet

        def exemplars():
            fleet.turns(8, 300)
            url = f"{fleet.prometheus}/api/v1/query_exemplars?query=tailroute_time_to_first_token_seconds_bucket"
            series = json.loads(get(url + "&start=0&end=9999999999"))["data"]
            of = [each for each in series if each["seriesLabels"]["worker"] == "engine-0"]
            found = [exemplar for each in of for exemplar in each["exemplars"] if float(exemplar["value"]) > 2.5]
            return [exemplar["labels"]["trace_id"] for exemplar in found]

        for trace in until("there are exemplars of late turns", exemplars)[:5]:
            own, attempt, _ = self.parts(self.trace(trace))
            self.assertEqual(attempt.attributes["tailroute.worker"], "engine-0")
            found = json.loads(get(f"{fleet.admin}/admin/v1/decisions?trace={trace}"))["decisions"]
            self.assertEqual([decision["trace"] for decision in found], [trace])
            self.assertEqual(found[0]["request"], own.attributes["tailroute.request_id"])

    def test_4_promtool_has_nothing_to_say_of_the_metrics(self):
        page = get(f"{self.fleet.admin}/metrics")
        for name in ("tailroute_build_info{version=", "process_cpu_seconds_total ", "process_open_fds "):
            self.assertIn(name, page)
        self.assertEqual(linted(page), (0, "", ""))

    def trace(self, trace):
        """All spans of a trace, once the collector has them."""
        return until(f"the trace {trace} has come", lambda: self.fleet.collector.trace(trace))

    def parts(self, trace):
        """The request's own span, that of its attempt on a worker, and the wait for the first token within it."""
        (own,) = [span for span in trace if span.kind == 2]
        (attempt,) = [span for span in trace if span.kind == 3]
        (prefill,) = [span for span in trace if span.name == "prefill"]
        self.assertEqual((attempt.parent, prefill.parent), (own.id, attempt.id))
        return own, attempt, prefill


def until_shown(fleet, shows):
    """The panels' queries that show nothing, once Prometheus has looked often enough for the others."""
    missing = []

    def looked():
        # A rate needs something that goes on.
        fleet.turns(16, 300)
        missing[:] = [(where, query) for where, query in queries() if not shows(query)]
        return not missing

    try:
        until("every panel shows something", looked)
    except AssertionError:
        pass
    return missing


if __name__ == "__main__":
    unittest.main(verbosity=2)
