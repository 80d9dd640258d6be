"""Programs as processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BINS = Path(os.environ.get("TAILROUTE_BINS", Path(__file__).parents[3] / "target/debug"))


def gpu_bench(command: str, *options: str) -> list[str]:
    """With this interpreter."""
    return [str(BINS / "gpu-bench"), command, "--python", sys.executable, *options]


@contextlib.contextmanager
def running(*command: str, **more: Any) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **more)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def port_of(process: subprocess.Popen[str]) -> int:
    """Of a worker that says as JSON where it listens."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"it ended with {process.wait()} instead of saying where it listens"
    return int(json.loads(line)["url"].rsplit(":", 1)[1])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
