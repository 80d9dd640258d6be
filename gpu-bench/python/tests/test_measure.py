"""The protocol: who it is, then an answer for each line."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from typing import Any

import pytest
import torch
from conftest import CPU, MICRO, PATIENCE_S

from tailroute_torch import devices, measure
from tailroute_torch.paged import KvPool
from tailroute_torch.prefill import Prefills
from tailroute_torch.roofline import Peaks, prefill_work


@pytest.fixture(scope="module")
def prefills() -> Prefills:
    return Prefills(MICRO, MICRO.layers, CPU, torch.float32, context_tokens=512, block_tokens=16, seed=1)


def asked(prefills: Prefills, *lines: str) -> list[dict[str, Any]]:
    out = io.StringIO()
    facts = measure.hello(prefills, Peaks(1e12, 1e11, "a test"), 16)
    measure.answer_lines(prefills, facts, io.StringIO("".join(line + "\n" for line in lines)), out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_the_first_line_says_who_it_is(prefills: Prefills) -> None:
    (first,) = asked(prefills)
    hello = first["hello"]
    assert (hello["context_tokens"], hello["block_tokens"]) == (512, 16)
    assert hello["model"] == "micro (fp32, random weights)"
    assert hello["roofline"] == {"flops_per_s": 1e12, "bytes_per_s": 1e11, "from": "a test"}
    assert hello["software"].startswith("torch ")
    assert hello["device"] and hello["driver"]


def test_each_line_is_answered_by_a_sample(prefills: Prefills) -> None:
    lines = [json.dumps({"cached_tokens": 128, "uncached_tokens": 40, "repeat": at}) for at in range(3)]
    work = prefill_work(MICRO, 128, 40, 4)
    for sample in asked(prefills, *lines)[1:]:
        assert sample.pop("prefill_ms") > 0
        assert sample == {"cached_tokens": 128, "uncached_tokens": 40, "flops": work.flops, "bytes": work.bytes}


def test_history_is_rounded_down_to_blocks_and_told(prefills: Prefills) -> None:
    sample = asked(prefills, '{"cached_tokens": 47, "uncached_tokens": 5}')[1]
    assert (sample["cached_tokens"], sample["uncached_tokens"]) == (32, 5)


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ('{"uncached_tokens": 5}', "`cached_tokens`: missing"),
        ('{"cached_tokens": 0}', "`uncached_tokens`: missing"),
        ('{"cached_tokens": -16, "uncached_tokens": 5}', "`cached_tokens`"),
        ('{"cached_tokens": 0, "uncached_tokens": 0}', "`uncached_tokens`"),
        ('{"cached_tokens": 1.5, "uncached_tokens": 5}', "`cached_tokens`"),
        ('{"cached_tokens": true, "uncached_tokens": 5}', "`cached_tokens`"),
        ('{"cached_tokens": 0, "uncached_tokens": 5, "repeat": "x"}', "`repeat`"),
        ('{"cached_tokens": 0, "uncached_tokens": 5, "more": 1}', "`more`: unknown"),
        ('{"cached_tokens": 400, "uncached_tokens": 200}', "context of 512"),
        ("[1, 2]", "expected an object"),
        ("{", "no JSON"),
        ("", "no JSON"),
        ("[" * 4000, "no JSON"),
    ],
)
def test_a_bad_line_is_answered_by_what_is_wrong_and_the_next_one_is_heard(
    prefills: Prefills, line: str, names: str
) -> None:
    _, wrong, sample = asked(prefills, line, '{"cached_tokens": 0, "uncached_tokens": 5}')
    assert names in wrong["error"]
    assert sample["uncached_tokens"] == 5


def test_what_is_measured_leaves_the_prefix_as_it_was() -> None:
    def prefix(first: Prefills) -> torch.Tensor:
        first.measure(96, 16)
        return kept(first).keys[-1][:6].clone()

    def kept(prefills: Prefills) -> KvPool:
        return prefills._pool

    fresh = Prefills(MICRO, 2, CPU, torch.float32, 512, 16, seed=1)
    used = Prefills(MICRO, 2, CPU, torch.float32, 512, 16, seed=1)
    for cached, new in ((0, 200), (32, 300), (16, 100)):
        used.measure(cached, new)
    torch.testing.assert_close(prefix(used), prefix(fresh), rtol=1e-4, atol=1e-5)


def test_fewer_layers_are_scaled_to_all_and_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    class Watch:
        def __init__(self, _: torch.device) -> None:
            pass

        def mark(self) -> None:
            pass

        def laps_ms(self) -> list[float]:
            # Embedding, layers, head.
            return [1.0, 10.0, 3.0]

    some = Prefills(MICRO.of_layers(8), 2, CPU, torch.float32, 64, 16, seed=1)
    monkeypatch.setattr(devices, "Stopwatch", Watch)
    timed = some.measure(0, 16)
    assert timed.prefill_ms == 1.0 + 10.0 * 8 / 2 + 3.0
    assert timed.work == prefill_work(MICRO.of_layers(8), 0, 16, 4)
    facts = measure.hello(some, Peaks(1.0, 1.0, ""), 16)
    assert facts["model"] == "micro (fp32, random weights; 2 of 8 layers, times of layers extrapolated)"


def command(*options: str, said: str = "") -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-m", "tailroute_torch", "measure", "--threads", "1", *options]
    return subprocess.run(call, input=said, capture_output=True, text=True, timeout=PATIENCE_S)


def test_the_command_ends_with_its_input() -> None:
    done = command(
        "--dtype", "fp32", "--context-tokens", "256", said='{"cached_tokens":64,"uncached_tokens":8,"repeat":0}\n'
    )
    hello, sample = (json.loads(line) for line in done.stdout.splitlines())
    assert done.returncode == 0, done.stderr
    assert hello["hello"]["context_tokens"] == 256
    assert sample["cached_tokens"] == 64


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--layers", "9"], "--layers 9: tiny has 1 to 4"),
        (["--device", "cuda:7"], "--device cuda:7"),
        (["--device", "nonsense"], "--device nonsense"),
        (["--block-tokens", "0"], "--block-tokens 0"),
        (["--context-tokens", "3"], "--context-tokens 3"),
        (["--shape", "gpt-9"], "--shape"),
    ],
)
def test_bad_options_are_named(options: list[str], names: str) -> None:
    done = command(*options)
    assert done.returncode == 2
    assert names in done.stderr
    assert "Traceback" not in done.stderr
