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
# The first is the one that has to pay.
RULES = os.environ.get("RULES", "queue-aware").split()
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
    rules = ["off", *RULES]
    rounds = {rule: [] for rule in rules}
    try:
        for number in range(len(rules) * ROUNDS):
            seed, turn = divmod(number, len(rules))
            rule = rules[(turn + seed) % len(rules)]
            shape = f"--turns {TURNS} --live {LIVE} --rate {RATE} --system 80 --prompt 32 --answer 16".split()
            with trace.open("w") as file:
                subprocess.run([sys.executable, GENERATOR, str(seed), *shape], stdout=file, check=True)
            for engine in engines:
                engine.reset_cache()
                no_objective(engine)
            with Router(f"pay-{number}", engines, rule=rule, learn_costs=True) as router:
                rounds[rule].append(drive(router, trace, seed))
            print(f"round {seed + 1}, {rule}:", {name: round(rounds[rule][-1][name], 3) for name in FIGURES}, flush=True)
    finally:
        for engine in engines:
            engine.stop()
    median = {rule: {name: statistics.median(one[name] for one in of) for name in FIGURES} for rule, of in rounds.items()}
    for name in FIGURES:
        off = median["off"][name]
        told = (f"{median[rule][name]:.3f} {rule} (x {median[rule][name] / off:.3f})" for rule in RULES)
        print(f"{name:<14}{off:10.3f} off,", ", ".join(told))
    told = median[RULES[0]]
    assert told["ttft_p95_ms"] < median["off"]["ttft_p95_ms"]
    assert told["hit_ratio"] >= median["off"]["hit_ratio"]
