"""From a firing alert to the reason of a late turn, by the links of the alert and of its runbook alone.

    scripts/observability reason     a fleet whose engine becomes slow, the alert, the reason, and the seconds between the two
"""

import contextlib
import dataclasses
import datetime
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

from fleet import ROOT, Fleet, Processes, get, until

ALERT = "TailrouteTtftBudgetBurnsFast"
# Where alerts say that the runbooks are published, and where they lie in the tree.
PUBLISHED = "https://tailroute.example.com/"
LIMIT_S = 60


@dataclasses.dataclass
class Reason:
    """Why a turn was late, and how long it took to find out."""

    request: str
    cause: str
    explanation: str
    action: str
    seconds: float


def runbook(url):
    """The page that `runbook_url` names, from the tree instead of the place where it is published."""
    assert url.startswith(PUBLISHED), url
    return (ROOT / url.removeprefix(PUBLISHED)).read_text()


@contextlib.contextmanager
def load(fleet):
    """Sends turns meanwhile."""
    enough = threading.Event()

    def send():
        while not enough.is_set():
            fleet.turns(8, 300)

    sending = threading.Thread(target=send)
    sending.start()
    try:
        yield
    finally:
        enough.set()
        sending.join()


def fired(fleet, name=ALERT):
    """The alert, once it fires."""

    def firing():
        alerts = json.loads(get(f"{fleet.prometheus}/api/v1/alerts"))["data"]["alerts"]
        return [alert for alert in alerts if alert["labels"]["alertname"] == name and alert["state"] == "firing"]

    return until(f"{name} fires", firing)[0]


def follow(alert, binaries):
    """Follows the links of an alert. Returns the reason of a late turn."""
    links = alert["annotations"]
    page = runbook(links["runbook_url"])
    # The console is a page with a script; a browser would show the decisions that the next link has as JSON.
    assert "<title>tailroute" in get(urllib.parse.urldefrag(links["console"]).url)

    def ended():
        # The cause of a turn is known when it has ended, a while after its late first token.
        decisions = json.loads(get(links["explain"]))["decisions"]
        return [decision for decision in decisions if (decision["outcome"] or {}).get("cause")]

    late = until("a late turn has ended", ended)[0]
    command = re.search(r"^ *(tailroute ctl .*explain REQUEST_ID)$", page, re.M).group(1)
    command = command.replace("ADMIN", alert["labels"]["instance"]).replace("REQUEST_ID", late["request"])
    program, *arguments = shlex.split(command)
    done = subprocess.run([binaries / program, *arguments], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    cause = late["outcome"]["cause"]
    action = re.search(rf"^\| `{cause}` \|.*\| (.+) \|$", page, re.M).group(1)
    # The alert waits for nothing (`for`), so it fires when it becomes active.
    since = datetime.datetime.fromisoformat(alert["activeAt"]).timestamp()
    return Reason(late["request"], cause, done.stdout.strip(), action, time.time() - since)


def main():
    binaries = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder, Processes(folder) as processes:
        fleet = Fleet(processes, binaries)
        fleet.turns(16, 300)
        fleet.slow(0, 200.0)
        with load(fleet):
            alert = fired(fleet)
            found = follow(alert, binaries)
        print(f"{alert['annotations']['summary']}\n{json.dumps(alert['annotations'], indent=1)}\n")
        print(f"{found.explanation}\n\ncause: {found.cause}\nrunbook: {found.action}\n")
        print(f"from the firing alert to the reason: {found.seconds:.1f} s (asked: {LIMIT_S} s)")
        return 0 if found.seconds <= LIMIT_S else 1


if __name__ == "__main__":
    sys.exit(main())
