"""Small models, and servers on ports of their own."""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import uvicorn
from client import Client

from tailroute_torch.__main__ import parser
from tailroute_torch.model import Decoder, random_decoder
from tailroute_torch.options import Ready
from tailroute_torch.serve import command
from tailroute_torch.serve.engine import Engine
from tailroute_torch.shapes import Shape

# On a busy machine threads that wait for each other wait for long.
torch.set_num_threads(1)

CPU = torch.device("cpu")
MICRO = Shape("micro", 2048, 64, 2, 4, 2, 16, 128, 10_000.0, 1e-5, False, 2048)
PATIENCE_S = 120.0


def decoder(shape: Shape = MICRO) -> Decoder:
    return random_decoder(shape, CPU, torch.float32, seed=3)


class Server:
    """A worker in a thread of this process."""

    def __init__(self, *options: str) -> None:
        args: argparse.Namespace = parser().parse_args(["serve", "--port", "0", "--block-tokens", "16", *options])
        args.capacity_blocks = args.capacity_blocks or 512
        self.app = command.build(args, Ready(MICRO, MICRO.layers, CPU, torch.float32))
        listener = command._listen("127.0.0.1", 0)
        self.port = listener.getsockname()[1]
        self._server = uvicorn.Server(uvicorn.Config(self.app.asgi(), log_level="critical", lifespan="on"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]})
        self._thread.start()
        self.client = Client(self.port)
        until(lambda: self._server.started)

    @property
    def engine(self) -> Engine:
        return self.app.engine

    def stats(self) -> dict[str, Any]:
        return self.client.call("GET", "/sim/stats")[1]

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """Starts workers, which end with the test."""
    started: list[Server] = []

    def start(*options: str) -> Server:
        started.append(Server(*options))
        return started[-1]

    yield start
    for server in started:
        server.stop()
