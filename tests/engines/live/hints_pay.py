"""What hints save on two real vLLM servers, where conversations end without a word and the caches overflow."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import no_objective
from processes import ROUTER, Engine, Router

GENERATOR = Path(__file__).parents[3] / "scripts" / "ending-conversations"
ROUNDS = int(os.environ.get("ROUNDS", "5"))
# Some 1,100 tokens each on average, in caches of 12,800 tokens. The model's tokenizer makes four of one token of a trace.
LIVE, TURNS, RATE = 22, 560, 8
WARM = 0.4
FIGURES = ["ttft_p50_ms", "ttft_p95_ms", "ttft_p99_ms", "ttft_mean_ms", "hit_ratio"]


def drive(router: Router, trace: Path, seed: int) -> dict[str, float]:
    """What the turns of a trace got."""
    command = [str(ROUTER), "drive", "--trace", str(trace), "--target", router.url, "--json"]
    done = subprocess.run(
        [*command, "--warmup-share", str(WARM), "--seed", str(seed)], capture_output=True, text=True
    )
    figures = json.loads(done.stdout)["targets"][0]["median"]
    # The random model says nothing now and then, which is an incomplete answer and no error.
    assert figures["errors"] == 0 and figures["incomplete"] < 0.05 * TURNS, done.stderr + done.stdout
    return figures


@pytest.mark.timeout(3600)
def test_hints_lower_the_tail(tmp_path):
    engines = [Engine(f"vllm-{name}", blocks=400) for name in ("one", "two")]
    trace = tmp_path / "trace.jsonl"
    rounds = {True: [], False: []}
    try:
        for number in range(2 * ROUNDS):
            seed, hints = number // 2, (number + number // 2) % 2 == 1
            shape = f"--turns {TURNS} --live {LIVE} --rate {RATE} --system 80 --prompt 32 --answer 16".split()
            with trace.open("w") as file:
                subprocess.run([sys.executable, GENERATOR, str(seed), *shape], stdout=file, check=True)
            for engine in engines:
                engine.reset_cache()
                no_objective(engine)
            with Router(f"pay-{number}", engines, hints=hints, learn_costs=True) as router:
                rounds[hints].append(drive(router, trace, seed))
            print(f"round {seed + 1}, hints {hints}:", {name: round(rounds[hints][-1][name], 3) for name in FIGURES})
    finally:
        for engine in engines:
            engine.stop()
    median = {hints: {name: statistics.median(one[name] for one in of) for name in FIGURES} for hints, of in rounds.items()}
    for name in FIGURES:
        told, untold = median[True][name], median[False][name]
        print(f"{name:<14}{told:10.3f} told {untold:10.3f} untold, x {told / untold:.3f}")
    assert median[True]["ttft_p95_ms"] < median[False]["ttft_p95_ms"]
    assert median[True]["hit_ratio"] >= median[False]["hit_ratio"]
