"""A static binary as the image has it: alone in a root, as a user without a name. It has to resolve names and serve.

    scripts/deploy static     builds it as deploy/Dockerfile does, but for the profile, and runs this (root, for chroot)
"""

import http.server
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

NAME_SERVER = "127.0.0.77"
WORKER = "engine.inference.svc"


class Engine(http.server.BaseHTTPRequestHandler):
    """As much of a worker as a probe asks for."""

    def do_GET(self):
        body = b'{"data":[{"id":"m"}]}'
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def answer_names(port):
    """Says that every name is this machine."""
    while True:
        query, asker = port.recvfrom(512)
        end = query.index(b"\0", 12)
        (kind,) = struct.unpack(">H", query[end + 1 : end + 3])
        answer = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 5, 4) + socket.inet_aton("127.0.0.1") if kind == 1 else b""
        counts = struct.pack(">HHHHH", 0x8180, 1, bool(answer), 0, 0)
        port.sendto(query[:2] + counts + query[12 : end + 5] + answer, asker)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def ready(admin):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{admin}/readyz", timeout=5) as answer:
            return answer.read() == b"ready\n"
    except OSError:
        return False


def main(binary):
    names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    names.bind((NAME_SERVER, 53))
    engine = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    for work, given in ((answer_names, (names,)), (engine.serve_forever, ())):
        threading.Thread(target=work, args=given, daemon=True).start()
    data, admin = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        root.chmod(0o755)
        (root / "etc").mkdir()
        shutil.copy(binary, root / "tailroute")
        (root / "etc/resolv.conf").write_text(f"nameserver {NAME_SERVER}\n")
        (root / "tailroute.toml").write_text(
            f'[server]\nlisten = "127.0.0.1:{data}"\n[admin]\nlisten = "127.0.0.1:{admin}"\n'
            f'[[workers]]\nurl = "http://{WORKER}:{engine.server_port}"\n'
        )
        command = [shutil.which("chroot", path="/usr/sbin:/usr/bin"), "--userspec=+65532:+65532", root]
        served = subprocess.Popen([*command, "/tailroute", "serve", "--config", "/tailroute.toml"], env={})
        try:
            until = time.monotonic() + 60
            while not ready(admin):
                assert served.poll() is None and time.monotonic() < until, "it did not find its worker"
                time.sleep(0.1)
            served.terminate()
            code = served.wait(60)
        finally:
            served.kill()
    assert code == 0, code
    print(f"{os.path.basename(binary)}: found {WORKER} by name and served, alone in its root")


if __name__ == "__main__":
    main(sys.argv[1])
