"""Sends every case of the matrix through the router to real servers, and compares what they parsed with what was sent.

    matrix.py TAILROUTE [name of a server ...]

A worker must parse exactly the clients' requests: method, target and body, in order on each connection. Anything else
that it parses was smuggled. After each case a harmless request must get its own answer, and a connection whose exchange
was not finished must not carry it.
"""

import json
import multiprocessing
import os
import pathlib
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter, defaultdict

from h2.exceptions import ProtocolError

from cases import all_cases, victim_of
from clients import Http1, Http2

HERE = pathlib.Path(__file__).parent
PYTHON, NODE = [sys.executable, str(HERE / "worker.py")], ["node", str(HERE / "worker.mjs")]
# Each server, and whether it opens tunnels.
SERVERS = {
    "uvicorn-h11": ([*PYTHON, "h11", "none"], False),
    "uvicorn-h11-websockets": ([*PYTHON, "h11", "websockets"], True),
    "uvicorn-httptools": ([*PYTHON, "httptools", "none"], False),
    "uvicorn-httptools-wsproto": ([*PYTHON, "httptools", "wsproto"], True),
    "node": ([*NODE, "none"], False),
    "node-tunnels": ([*NODE, "own"], True),
}
CONFIG = """
[server]
listen = "127.0.0.1:{data}"
[admin]
listen = "127.0.0.1:{admin}"
[limits]
first_byte_timeout_s = 15.0
[failure]
slow_start_s = 0.0
[[workers]]
url = "http://127.0.0.1:{worker}"
"""
MOST_SHOWN = 40


def free_ports(count):
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


class Worker:
    """A server, and the events that it reported."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.port = json.loads(self.process.stdout.readline())["port"]
        self.events = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.events.put(json.loads(line))

    def stop(self):
        # uvicorn would wait for the requests that it never answers.
        self.process.kill()
        self.process.wait()

    def reported(self):
        events = []
        while not self.events.empty():
            events.append(self.events.get())
        return events


def wait_until_ready(admin, router):
    until = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{admin}/readyz", timeout=5):
                return
        except OSError:
            if time.monotonic() > until or router.poll() is not None:
                raise
            time.sleep(0.1)


class Run:
    def __init__(self, binary, name):
        command, self.takes_tunnels = SERVERS[name]
        self.name, self.problems, self.counts = name, [], Counter()
        self.sent, self.folder = {}, tempfile.TemporaryDirectory()
        self.worker = Worker(command)
        self.data, admin = free_ports(2)
        config = pathlib.Path(self.folder.name) / "router.toml"
        config.write_text(CONFIG.format(data=self.data, admin=admin, worker=self.worker.port))
        log = open(pathlib.Path(self.folder.name) / "router.log", "w")
        self.router = subprocess.Popen([binary, "serve", "--config", str(config)], stdout=log, stderr=log)
        wait_until_ready(admin, self.router)

    def stop(self):
        self.router.terminate()
        self.router.wait()
        self.worker.stop()
        self.folder.cleanup()

    def wrong(self, case, what):
        self.problems.append(f"{self.name}: {case}: {what}")

    def all(self):
        self.http2 = Http2(self.data)
        for case in all_cases(self.takes_tunnels):
            self.one(case)
            self.one(victim_of(case))
            if len(self.problems) > MOST_SHOWN:
                break
        self.http2.close()
        # A last request: what a worker parsed before it has been reported by its answer.
        time.sleep(1)
        self.compare(self.worker.reported())

    def one(self, case):
        self.sent[str(case.number)] = case
        self.counts["exchanges"] += 1
        http1 = Http1(self.data) if case.version == "1" else None
        try:
            answer = (http1 or self.http2).exchange(case)
        except (OSError, ValueError, ProtocolError) as error:
            answer = None
            self.http2.close()
            if case.expected is not None:
                self.wrong(case, f"no answer: {error!r}")
                return
        finally:
            if http1:
                http1.close()
        self.judge(case, answer)

    def judge(self, case, answer):
        if case.expected is None:
            self.counts["left"] += 1
            return
        if answer is None:
            self.wrong(case, "no answer")
            return
        status, is_the_workers = case.expected
        if case.is_tunnel and case.version == "2" and status == 101:
            status = 200
        echo = answer.fields.get("x-echo")
        own = answer.fields.get("x-tailroute-error")
        if answer.status != status or (echo is not None) != is_the_workers or (own is None) != is_the_workers:
            self.wrong(case, f"answered {answer.status} {echo or own}; expected {status}")
        elif case.answer == "101" and is_the_workers:
            self.counts["tunnels"] += 1
        elif is_the_workers:
            self.counts["answered by the worker"] += 1
            # A worker that opens tunnels answers a refused one before it reads a body, if it can tell at all.
            digest = "-" if case.answer == "early" and not self.is_handshake(case) else case.digest
            if echo != case.echo(digest):
                self.wrong(case, f"got the answer to another request: {echo}")
        else:
            self.counts["refused by the router"] += 1
            if status == 400 and case.is_tunnel and own != "upgrade_with_body":
                self.wrong(case, f"refused with {own}")

    def is_handshake(self, case):
        return case.is_tunnel and self.takes_tunnels

    def compare(self, events):
        """Compares what the worker parsed with what was sent."""
        begun, ended = [], {}
        for event in events:
            if event["event"] == "begin":
                begun.append(event)
            else:
                ended[event["request"]] = event
        connections, seen = defaultdict(list), defaultdict(list)
        for event in begun:
            # The router's own calls carry its name; a smuggled request carries neither.
            if event["case"] == "" and event["via"].startswith("1.1 tailroute-"):
                continue
            case = self.sent.get(event["case"])
            if case is None or (event["method"], event["target"]) != (case.method, case.target):
                self.counts["smuggled"] += 1
                self.problems.append(f"{self.name}: smuggled: {event['method']} {event['target']} ({event})")
                continue
            seen[event["case"]].append(event)
            connections[event["connection"]].append(case.number)
            self.compare_body(case, ended.get(event["request"]))
        for number, cases in connections.items():
            if cases != sorted(cases):
                self.problems.append(f"{self.name}: connection {number} carried requests out of order: {cases}")
        for number, case in self.sent.items():
            self.compare_count(case, seen[number])
        self.compare_connections(seen)

    def compare_body(self, case, end):
        if case.answer == "early" and (end is None or not end["whole"]):
            return
        if end is None:
            if case.expected is not None:
                self.wrong(case, "the worker did not read the body")
        elif end["whole"] and end["digest"] != case.digest:
            self.counts["smuggled"] += 1
            self.wrong(case, f"the worker parsed another body, of {end['size']} bytes")
        elif end["whole"] and case.form == "short":
            self.counts["smuggled"] += 1
            self.wrong(case, "the worker took a part of a body for all of it")

    def compare_count(self, case, seen):
        reaches = case.reaches_a_worker
        if len(seen) > 1 or (reaches is not None and len(seen) != int(reaches)):
            self.wrong(case, f"the worker parsed it {len(seen)} times")

    def compare_connections(self, seen):
        """An unfinished exchange is the last one of its connection."""
        for number, case in self.sent.items():
            is_unfinished = case.comes_in_halves or (case.is_tunnel and case.answer != "101")
            is_unfinished |= case.answer in ("closed", "switch") or case.form == "short"
            after = seen[str(case.number + 1)]
            if is_unfinished and seen[number] and after and seen[number][0]["connection"] == after[0]["connection"]:
                self.wrong(case, "its connection was used again")


def run(binary, name):
    try:
        one = Run(binary, name)
    except Exception as error:
        return name, [f"{name}: cannot start: {error!r}"], Counter(), 0
    began = time.monotonic()
    try:
        one.all()
    finally:
        one.stop()
    return name, one.problems, one.counts, time.monotonic() - began


def main():
    binary, names = os.path.abspath(sys.argv[1]), sys.argv[2:] or list(SERVERS)
    total, problems = Counter(), []
    with multiprocessing.Pool(min(len(names), os.cpu_count() + 1)) as pool:
        for name, wrong, counts, seconds in pool.starmap(run, [(binary, name) for name in names], chunksize=1):
            kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()) if kind != "exchanges")
            print(f"{name}: {counts['exchanges']} exchanges in {seconds:.0f} s: {kinds}", flush=True)
            total += counts
            problems += wrong
    for problem in problems[:MOST_SHOWN]:
        print(problem)
    if len(problems) > MOST_SHOWN:
        print(f"and {len(problems) - MOST_SHOWN} more")
    print(f"{total['exchanges']} exchanges, {total['smuggled']} smuggled, {len(problems)} wrong")
    sys.exit(bool(problems) or total["exchanges"] == 0)


if __name__ == "__main__":
    main()
