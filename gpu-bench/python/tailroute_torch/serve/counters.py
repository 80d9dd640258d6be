"""What is counted since the start."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

# vLLM's bounds, in seconds.
TTFT_BUCKETS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip


@dataclass
class Counters:
    """Of requests and tokens. Changed under the engine's lock."""

    received: int = 0
    refused: int = 0
    completed: int = 0
    # Of these, those that ended at their limit.
    ran_out: int = 0
    aborted: int = 0
    prefills: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    ttft_seconds: float = 0.0
    ttft_buckets: list[int] = field(default_factory=lambda: [0] * (len(TTFT_BUCKETS_S) + 1))

    def prefilled(self, prompt: int, cached: int, queue_ms: float, ttft_ms: float) -> None:
        self.prefills += 1
        self.prompt_tokens += prompt
        self.cached_tokens += cached
        self.queue_seconds += queue_ms / 1e3
        self.ttft_seconds += ttft_ms / 1e3
        self.ttft_buckets[bisect.bisect_left(TTFT_BUCKETS_S, ttft_ms / 1e3)] += 1
