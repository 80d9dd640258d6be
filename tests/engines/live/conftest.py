"""Engines are started once and shared: one with the plugin for nearly everything, a stock one and one with the connector."""

from __future__ import annotations

import time

import pytest
from processes import Engine, http
from sglang_server import Sglang

_took: dict[str, float] = {}


def pytest_runtest_logreport(report):
    _took[report.nodeid] = _took.get(report.nodeid, 0.0) + report.duration


def pytest_terminal_summary(terminalreporter):
    terminalreporter.section("how long each test took, the start of its engine included")
    for name, seconds in _took.items():
        terminalreporter.write_line(f"{seconds:7.1f} s  {name}")


@pytest.fixture(scope="session")
def engine():
    """vLLM with the plugin and room for 99 blocks of 32 tokens."""
    started = Engine("vllm-plugin")
    yield started
    started.stop()


@pytest.fixture(scope="session")
def sglang():
    """SGLang with the plugin."""
    started = Sglang("sglang")
    yield started
    started.stop()


@pytest.fixture
def fresh(engine):
    """The engine with an empty cache, and no objective of an earlier router's."""
    engine.reset_cache()
    no_objective(engine)
    return engine


def no_objective(engine):
    """Takes back what a router told the engine to hold by: keep everything."""
    # Epochs are the time in microseconds.
    nothing = {"xi_tokens": 0, "next_prompt_tokens": 0, "epoch": time.time_ns() // 1000}
    http.put(f"{engine.url}/v1/tailroute/objective", json=nothing, timeout=60).raise_for_status()
