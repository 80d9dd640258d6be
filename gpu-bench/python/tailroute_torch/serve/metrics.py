"""``/metrics`` and the counts of ``/sim/stats``, under the names of vLLM and of the simulated engine."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

from .counters import TTFT_BUCKETS_S
from .engine import Engine


def stats(engine: Engine) -> dict[str, Any]:
    with engine.lock:
        counters, memory = engine.counters, engine.memory
        cache, block = memory.cache, engine.block_tokens
        hints = {f"hints_{name}": count for name, count in dataclasses.asdict(memory.hints).items()}
        return {
            "received": counters.received,
            "completed": counters.completed,
            "refused": counters.refused,
            "aborted": counters.aborted,
            "waiting": engine.waiting,
            "running": engine.running,
            "prompt_tokens": counters.prompt_tokens,
            "cached_tokens": counters.cached_tokens,
            "generation_tokens": counters.generation_tokens,
            "prefill_seconds": counters.prefill_seconds,
            "ttft_seconds": counters.ttft_seconds,
            "ttft_count": counters.prefills,
            "cache_used_tokens": cache.used * block,
            "cache_pinned_tokens": cache.pinned * block,
            "cache_evict_first_tokens": cache.evict_first * block,
            "evicted_by_hint_tokens": cache.evicted_by_hint * block,
            "evicted_by_xi_tokens": cache.evicted_by_xi * block,
            "cache_capacity_tokens": cache.capacity * block,
            "sessions": memory.sessions,
            "memory": {**hints, "blocks_stored": cache.stored, "blocks_removed": cache.removed},
            "objective": memory.objective_status(1e3 * time.monotonic()),
        }


def render(engine: Engine, model: str) -> str:
    now = stats(engine)
    with engine.lock:
        counters = dataclasses.replace(engine.counters, ttft_buckets=list(engine.counters.ttft_buckets))
        capacity = engine.memory.cache.capacity
    escaped = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    page = _Page(f'engine="0",model_name="{escaped}"')
    page.one("vllm:num_requests_running", "gauge", now["running"])
    page.one("vllm:num_requests_waiting", "gauge", now["waiting"])
    # As in vLLM: blocks that could be evicted count as free.
    page.one("vllm:kv_cache_usage_perc", "gauge", now["cache_pinned_tokens"] / now["cache_capacity_tokens"])
    page.head("vllm:cache_config_info", "gauge")
    info = f',block_size="{engine.block_tokens}",num_gpu_blocks="{capacity}",enable_prefix_caching="True"'
    page.line("vllm:cache_config_info", 1, info)
    for name, count in (
        ("vllm:prefix_cache_queries_total", counters.prompt_tokens),
        ("vllm:prefix_cache_hits_total", counters.cached_tokens),
        ("vllm:prompt_tokens_total", counters.prompt_tokens),
        ("vllm:generation_tokens_total", counters.generation_tokens),
    ):
        page.one(name, "counter", count)
    page.head("vllm:request_success_total", "counter")
    for reason, count in (
        ("stop", counters.completed - counters.ran_out),
        ("length", counters.ran_out),
        ("abort", counters.aborted),
    ):
        page.line("vllm:request_success_total", count, f',finished_reason="{reason}"')
    page.histogram(
        "vllm:time_to_first_token_seconds",
        counters.ttft_seconds,
        counters.prefills,
        zip(TTFT_BUCKETS_S, counters.ttft_buckets, strict=False),
    )
    computed = counters.prompt_tokens - counters.cached_tokens
    for name, total in (
        ("vllm:request_queue_time_seconds", counters.queue_seconds),
        ("vllm:request_prefill_time_seconds", counters.prefill_seconds),
        ("vllm:request_prefill_kv_computed_tokens", computed),
    ):
        page.histogram(name, total, counters.prefills, iter(()))
    page.one("tailroute_torch:evict_first_tokens", "gauge", now["cache_evict_first_tokens"])
    page.one("tailroute_torch:cached_tokens", "gauge", now["cache_used_tokens"])
    page.head("tailroute_torch:evicted_first_tokens_total", "counter")
    for cause in ("xi", "hint"):
        page.line("tailroute_torch:evicted_first_tokens_total", now[f"evicted_by_{cause}_tokens"], f',cause="{cause}"')
    for name, value in _objective(now["objective"]):
        page.one(f"tailroute_torch:objective_{name}", "gauge", value)
    page.head("tailroute_torch:hints_total", "counter")
    for outcome in ("applied", "expired", "rejected", "stale", "unknown"):
        page.line("tailroute_torch:hints_total", now["memory"][f"hints_{outcome}"], f',outcome="{outcome}"')
    return page.text()


def _objective(newest: dict[str, Any] | None) -> Iterator[tuple[str, float]]:
    """The budget's terms only while they are in force."""
    is_in_force = newest is not None and not newest["expired"]
    if newest is not None:
        if is_in_force:
            yield "xi_tokens", newest["xi_tokens"]
            yield "next_prompt_tokens", newest["next_prompt_tokens"]
        yield "epoch", newest["epoch"]
        yield "age_seconds", newest["age_s"]
    yield "t_lru", int(newest is not None and is_in_force and newest["t_lru"])


class _Page:
    def __init__(self, labels: str) -> None:
        self._labels = labels
        self._lines: list[str] = []

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def head(self, name: str, kind: str) -> None:
        about = "What vLLM means by it." if name.startswith("vllm:") else "Of this worker."
        self._lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]

    def line(self, name: str, value: float, more: str = "") -> None:
        self._lines.append(f"{name}{{{self._labels}{more}}} {value}")

    def one(self, name: str, kind: str, value: float) -> None:
        self.head(name, kind)
        self.line(name, value)

    def histogram(self, name: str, total: float, count: int, buckets: Iterator[tuple[float, int]]) -> None:
        self.head(name, "histogram")
        below = 0
        for bound, inside in buckets:
            below += inside
            self.line(f"{name}_bucket", below, f',le="{bound}"')
        self.line(f"{name}_bucket", count, ',le="+Inf"')
        self.line(f"{name}_sum", total)
        self.line(f"{name}_count", count)
