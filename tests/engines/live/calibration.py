"""What gpu-bench measures of a real vLLM, and how well a router predicts that begins with it."""

import json
import random
import subprocess
from pathlib import Path

from processes import LOGS, MODEL, ROUTER, Engine, Router
from talk import words

GPU_BENCH = ROUTER.with_name("gpu-bench")
HELD_OUT_COMMAND = Path(__file__).parents[3] / "scripts" / "held-out"
HELD_OUT = 200
LEAST_R2 = 0.97
MOST_ERROR = 0.2
GRID = ["--history", "0,256,768,1536,3072", "--uncached", "64,128,256,512,960"]


def measured(engine: Engine, out):
    """The calibration of an engine. Where the machine does other things one attempt may be refused for its noise."""
    command = [str(GPU_BENCH), "worker", engine.url, "--out", str(out), "--min-r2", str(LEAST_R2), "--json", "--restart"]
    said = []
    for _ in range(3):
        done = subprocess.run([*command, *GRID, "--budget-s", "400"], capture_output=True, text=True)
        if done.returncode == 0:
            return json.loads(done.stdout)
        said.append(done.stderr)
    raise AssertionError("in three attempts none held:\n" + "\n".join(said))


def prompts() -> str:
    chance, prefixes = random.Random(7), [words(500 + at, 200 * (at + 1)) for at in range(8)]
    asked = (chance.choice([*prefixes, ""]) + words(9000 + at, chance.randint(40, 900)) for at in range(HELD_OUT))
    return "".join(json.dumps(prompt) + "\n" for prompt in asked)


def held_out(router: Router) -> dict[str, float]:
    """How far off the predictions were of turns that nobody measured."""
    done = subprocess.run(
        [str(HELD_OUT_COMMAND), router.url, router.admin, MODEL],
        input=prompts(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


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
        with Router("router-bench", [engine], rule="off", calibration=out, learn_costs=True) as router:
            cost = router.cost()
            for name, value in fit["cost"].items():
                assert abs(cost[name] - value) <= 1e-6 * value, (cost, fit)
            told = held_out(router)
        assert told["turns"] == HELD_OUT, told
        told |= {
            "samples": fit["samples"],
            "r_squared": fit["r_squared"],
            "r_squared_without_gamma": fit["plain"]["r_squared"],
            "cost": fit["cost"],
        }
        print(json.dumps(told))
        (LOGS / "calibration.json").write_text(json.dumps(told, indent=2) + "\n")
        assert told["median_error"] <= MOST_ERROR, told
    finally:
        engine.stop()
