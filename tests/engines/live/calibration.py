"""What gpu-bench measures of a real vLLM, and how well a router predicts that begins with it."""

import json
import random
import statistics
import subprocess

from processes import LOGS, MODEL, ROUTER, Engine, Router, http, until
from talk import words

GPU_BENCH = ROUTER.with_name("gpu-bench")
HELD_OUT = 200
LEAST_R2 = 0.97
MOST_ERROR = 0.2
GRID = ["--history", "0,256,768,1536,3072", "--uncached", "64,128,256,512,960"]


def measured(engine: Engine, out):
    """The calibration of an engine. Where the machine does other things one attempt may be refused for its noise."""
    command = [str(GPU_BENCH), "worker", engine.url, "--out", str(out), "--min-r2", str(LEAST_R2), "--json"]
    said = []
    for _ in range(3):
        done = subprocess.run([*command, *GRID, "--budget-s", "400"], capture_output=True, text=True)
        if done.returncode == 0:
            return json.loads(done.stdout)
        said.append(done.stderr)
    raise AssertionError("in three attempts none held:\n" + "\n".join(said))


def held_out(router: Router):
    """What was predicted of turns that nobody measured, and what they took: (predicted, taken) in ms."""
    chance, prefixes = random.Random(7), [words(500 + at, 200 * (at + 1)) for at in range(8)]
    for at in range(HELD_OUT):
        prefix = chance.choice([*prefixes, ""])
        prompt = prefix + words(9000 + at, chance.randint(40, 900))
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": 2,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        answer = http.post(f"{router.v1}/chat/completions", json=body, headers={"x-request-id": f"held-{at}"})
        answer.raise_for_status()
        yield one(router, f"held-{at}")


def one(router: Router, request: str):
    def found():
        answer = http.get(f"{router.admin}/admin/v1/decisions/{request}")
        decisions = answer.json()["decisions"] if answer.status_code == 200 else []
        ended = [found for found in decisions if (found.get("outcome") or {}).get("ttft_ms") is not None]
        return ended[0] if ended else None

    decision = until(f"the decision of {request} to be known", found)
    # There is one worker.
    return decision["terms"][0]["predicted_ttft_ms"], decision["outcome"]["ttft_ms"]


def test_a_router_that_begins_with_what_was_measured_predicts_what_was_not(tmp_path):
    engine = Engine("vllm-bench", blocks=400, plugin=False, more=["--max-model-len", "4608"])
    try:
        out = tmp_path / "engine.json"
        calibration = measured(engine, out)
        fit = calibration["fit"]
        assert fit["r_squared"] >= LEAST_R2 and fit["cost"]["gamma_ms_per_token2"] > 0, fit
        assert calibration["clock"] == "engine", calibration
        assert calibration["facts"]["engine"].startswith("vllm "), calibration["facts"]
        assert calibration["facts"]["block_tokens"] == engine.block, calibration["facts"]
        assert (tmp_path / "engine.html").read_text().count("<svg") == 3
        with Router("router-bench", [engine], hints=False, calibration=out) as router:
            cost = router.cost()
            for name, value in fit["cost"].items():
                assert abs(cost[name] - value) <= 1e-6 * value, (cost, fit)
            pairs = list(held_out(router))
        errors = [abs(predicted / taken - 1) for predicted, taken in pairs]
        median = statistics.median(errors)
        told = {
            "samples": fit["samples"],
            "r_squared": fit["r_squared"],
            "r_squared_without_gamma": fit["plain"]["r_squared"],
            "cost": fit["cost"],
            "held_out": len(pairs),
            "median_error": median,
            "p90_error": statistics.quantiles(errors, n=10)[-1],
        }
        print(json.dumps(told))
        (LOGS / "calibration.json").write_text(json.dumps(told, indent=2) + "\n")
        assert median <= MOST_ERROR, told
    finally:
        engine.stop()
