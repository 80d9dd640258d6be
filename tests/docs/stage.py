"""Where commands run: four simulated engines, at the addresses and names of the pages, and a router if a page starts none."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).parent
PROGRAMS = pathlib.Path(os.environ["TAILROUTE_BIN"]).resolve()
ENGINES = {f"10.0.0.{n + 1}": f"gpu-{n}" for n in range(4)}
ADMIN = "http://127.0.0.1:9090"
ROUTER = """
[explain]
in_answers = true
[[objective.classes]]
name = "batch"
ttft_ms = 5000
[discovery.file]
path = "discovered.toml"
""" + "".join(f'[[workers]]\nname = "{name}"\nurl = "http://{ip}:8000"\n' for ip, name in ENGINES.items())


def program(name, *arguments):
    done = subprocess.run([PROGRAMS / name, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{name} {arguments}: {done.stdout}{done.stderr}"
    return done.stdout


def until(what, is_so, seconds=30):
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.05)


def answers(url):
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
        return True
    return False


def admin(path):
    with urllib.request.urlopen(ADMIN + path, timeout=10) as response:
        return json.load(response)


def network(folder):
    """Addresses of the pages on the loopback interface, and their names."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for ip in ENGINES:
        subprocess.run(["ip", "address", "add", f"{ip}/32", "dev", "lo"], check=True)
    names = {"127.0.0.1": "localhost chat.example.com", **ENGINES}
    hosts("".join(f"{ip} {name}\n" for ip, name in names.items()), folder)


def hosts(text, folder):
    """Replaces /etc/hosts by mounting a copy of /etc. A mount over the file itself fails where a file that has been deleted since
    is mounted there."""
    before, etc = folder / "etc-before", folder / "etc"
    before.mkdir()
    etc.mkdir()
    subprocess.run(["mount", "--rbind", "/etc", before], check=True)
    for entry in os.scandir("/etc"):
        (etc / entry.name).symlink_to(os.readlink(entry) if entry.is_symlink() else before / entry.name)
    (etc / "hosts").unlink(missing_ok=True)
    (etc / "hosts").write_text(text)
    subprocess.run(["mount", "--bind", etc, "/etc"], check=True)


class Stage:
    """One page's folder and processes."""

    def __init__(self, folder):
        self.folder, self.groups, self.log, self.printed = folder, [], folder / ".log", ""
        clean = {key: value for key, value in os.environ.items() if not key.startswith("TAILROUTE_")}
        self.environment = {**clean, "HOME": str(folder), "KEY": "0123456789abcdef0123456789abcdef",
                            "PATH": f"{PROGRAMS}:{HERE / 'bin'}:{clean['PATH']}"}

    def start(self, *command):
        with self.log.open("a") as log:
            process = subprocess.Popen(command, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=log,
                                       stderr=subprocess.STDOUT, start_new_session=True)
        self.groups.append(process)
        return process

    def engines(self):
        for ip in ENGINES:
            self.start("sim-engine", "--listen", f"{ip}:8000", "--model", "MODEL", "--time-scale", "20")
        for ip in ENGINES:
            until(f"engine {ip}", lambda: answers(f"http://{ip}:8000/health"))

    def router(self):
        (self.folder / "router.toml").write_text(ROUTER)
        (self.folder / "discovered.toml").write_text("workers = []\n")
        self.start("tailroute", "serve", "--config", "router.toml")
        until("router", lambda: answers(f"{ADMIN}/readyz") and all(w["state"] == "ready" for w in admin("/admin/v1/workers")["workers"]))

    def background(self, text):
        """Runs what does not end by itself; a router takes the ports of the one before it."""
        serves = "tailroute serve" in text
        if serves:
            self.stop()
        process = self.start("bash", "-euo", "pipefail", "-c", self.filled(text))
        if serves:
            until(text, lambda: process.poll() is not None or answers(f"{ADMIN}/readyz"))
        time.sleep(0.5)
        assert process.poll() in (None, 0), f"{text}\nended with {process.returncode}:\n{self.log.read_text()[-4000:]}"

    def run(self, text, seconds=60):
        out = self.folder / ".out"
        with out.open("w") as stdout, self.log.open("a") as log:
            process = subprocess.Popen(["bash", "-euo", "pipefail", "-c", self.filled(text)], cwd=self.folder, env=self.environment,
                                       stdin=subprocess.DEVNULL, stdout=stdout, stderr=log, start_new_session=True)
        self.groups.append(process)
        code = process.wait(seconds)
        self.printed = out.read_text()
        assert code == 0, f"{text}\nended with {code}:\n{self.printed[-3000:]}\n{self.log.read_text()[-3000:]}"

    def filled(self, text):
        """A block with its placeholders replaced: REQUEST_ID, NAME and so on."""
        if re.search(r"\b(REQUEST|TRACE)_ID\b", text):
            latest = admin("/admin/v1/decisions?limit=1")["decisions"][0]
            text = text.replace("REQUEST_ID", latest["request"]).replace("TRACE_ID", latest["trace"] or "")
        return re.sub(r"\bNAME\b", "gpu-0", re.sub(r"http://ADMIN\b", ADMIN, text))

    def stop(self):
        for process in reversed(self.groups):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)
        self.groups.clear()
