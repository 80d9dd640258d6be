"""One engine at a time: each module starts what it needs and stops it."""

from __future__ import annotations

import pytest
from processes import Engine

_took: dict[str, float] = {}


def pytest_runtest_logreport(report):
    _took[report.nodeid] = _took.get(report.nodeid, 0.0) + report.duration


def pytest_terminal_summary(terminalreporter):
    terminalreporter.section("how long each test took, the start of its engine included")
    for name, seconds in _took.items():
        terminalreporter.write_line(f"{seconds:7.1f} s  {name}")


@pytest.fixture(scope="module")
def engine(request):
    """vLLM with the plugin and room for 99 blocks of 32 tokens."""
    started = Engine(f"vllm-{request.module.__name__}")
    yield started
    started.stop()


@pytest.fixture
def fresh(engine):
    """The engine with an empty cache."""
    engine.reset_cache()
    return engine
