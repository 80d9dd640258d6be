"""`gpu-bench gpu`, and `gpu-bench worker` on what `gpu-bench serve` serves: the whole way to a calibration file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from conftest import PATIENCE_S
from processes import gpu_bench, port_of, running

# Small, and of sizes so different that noise does not hide them.
GRID = ["--history", "0,512,2048", "--uncached", "64,256,1024", "--repeats", "2", "--max-repeats", "2"]


def calibrated(command: list[str], out: Path) -> dict[str, Any]:
    """On a busy machine a measurement may be refused; that is not what this is about."""
    said = ""
    for _ in range(10):
        call = [*command, *GRID, "--min-r2", "0.5", "--out", str(out), "--json"]
        done = subprocess.run(call, capture_output=True, text=True, timeout=5 * PATIENCE_S)
        if done.returncode == 0:
            assert json.loads(done.stdout) == json.loads(out.read_text())
            return json.loads(out.read_text())
        said = done.stderr
        assert "no calibration was written" in said, said
    raise AssertionError(said)


def test_what_this_machine_costs_becomes_a_calibration_with_its_roofline(tmp_path: Path) -> None:
    command = gpu_bench("gpu", "--shape", "tiny", "--dtype", "fp32", "--threads", "1", "--device", "cpu")
    found = calibrated(command, tmp_path / "gpu.json")
    assert found["fit"]["cost"]["alpha_ms_per_token"] > 0
    assert found["model"] == "tiny (fp32, random weights)"
    assert found["facts"]["software"].startswith("torch ")
    assert found["facts"]["roofline"]["flops_per_s"] > 0
    assert found["best_roofline_share"] > 0
    assert found["range"] == {"history": [0, 2048], "uncached": [64, 1024]}
    report = subprocess.run(
        [*gpu_bench("gpu", "--shape", "tiny", "--layers", "5")], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert report.returncode == 1
    assert "--layers 5: tiny has 1 to 4" in report.stderr


def test_what_is_served_is_measured_as_any_worker(tmp_path: Path) -> None:
    options = ["--shape", "tiny", "--dtype", "fp32", "--threads", "1", "--port", "0", "--capacity-blocks", "500"]
    serve = gpu_bench("serve", *options, "--json", "--", "--per-request-metrics")
    with running(*serve) as process:
        url = f"http://127.0.0.1:{port_of(process)}"
        found = calibrated([*gpu_bench("worker")[:2], url], tmp_path / "worker.json")
    assert found["fit"]["cost"]["alpha_ms_per_token"] > 0
    assert found["clock"] == "engine", "its own times were not used"
    assert found["facts"]["block_tokens"] == 16
    assert found["facts"]["capacity_tokens"] == 8000
    assert found["partly_cached_probes"] == 0


def test_a_python_without_torch_is_told_what_to_do(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True, timeout=PATIENCE_S)
    call = [*gpu_bench("gpu")[:2], "--python", str(bare / "bin/python")]
    # Elsewhere, for Python finds a package in the folder where it is started.
    done = subprocess.run(call, capture_output=True, text=True, timeout=PATIENCE_S, cwd=tmp_path)
    assert done.returncode == 1
    assert "has no tailroute_torch, torch, numpy, starlette, uvicorn: `scripts/gpu-bench env`" in done.stderr
