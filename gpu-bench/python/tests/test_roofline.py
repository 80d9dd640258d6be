"""What a prefill is said to cost, against what is counted as it runs."""

from __future__ import annotations

import pytest
import torch
from conftest import CPU, MICRO, decoder
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tailroute_torch.devices import DriverFacts, driver_peaks, peaks
from tailroute_torch.paged import KvPool
from tailroute_torch.roofline import Peaks, Work, prefill_work


@pytest.mark.parametrize(("cached", "new"), [(0, 48), (64, 32), (160, 8)])
def test_operations_are_those_that_torch_counts(cached: int, new: int) -> None:
    model, pool = decoder(), KvPool(MICRO, 32, 16, CPU, torch.float32)
    tokens = torch.arange(new)
    with torch.inference_mode(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        hidden = model(tokens, pool, pool.prefill(list(range(32)), cached, new))
        model.logits(hidden[-1:])
    # This kernel computes the triangle above the diagonal too, which nobody needs.
    above = new * (new - 1) / 2
    said = prefill_work(MICRO, cached, new, 4).flops + MICRO.layers * 4 * MICRO.query_width * above
    assert counter.get_total_flops() == said


def test_bytes_are_those_of_what_has_to_be_read_and_written() -> None:
    cached, new = 64, 32
    model, pool = decoder(), KvPool(MICRO, (cached + new) // 16, 16, CPU, torch.float32)
    matrices = {name: weight for name, weight in model.named_parameters() if weight.dim() == 2}
    embedding = matrices.pop("embedding.weight")
    weights = sum(weight.numel() * weight.itemsize for weight in matrices.values())
    context = sum(kept.numel() * kept.itemsize for kept in [*pool.keys, *pool.values])
    written = context * new // (cached + new)
    said = prefill_work(MICRO, cached, new, 4).bytes
    assert said == weights + context + written + new * embedding[0].numel() * embedding.itemsize


def test_the_bound_is_the_slower_of_computing_and_moving() -> None:
    device = Peaks(flops_per_s=1e12, bytes_per_s=1e11, source="")
    assert device.least_ms(Work(flops=2e9, bytes=1e8)) == pytest.approx(2.0)
    assert device.least_ms(Work(flops=2e9, bytes=5e8)) == pytest.approx(5.0)


def test_peaks_from_the_driver_are_those_of_the_data_sheet() -> None:
    # A100 40 GB: 312 TFLOP/s in bf16 and 1555 GB/s, from its multiprocessors, clocks and bus.
    a100 = driver_peaks(DriverFacts((8, 0), 108, 1_410_000, 1_215_000, 5120))
    assert a100 is not None
    assert a100.flops_per_s == pytest.approx(312e12, rel=0.005)
    assert a100.bytes_per_s == pytest.approx(1555e9, rel=0.005)
    assert "driver" in a100.source
    assert driver_peaks(DriverFacts((99, 0), 108, 1_410_000, 1_215_000, 5120)) is None
    assert driver_peaks(DriverFacts((8, 0), 108, 1_410_000, 0, 0)) is None


def test_a_processors_peaks_are_measured_and_said_to_be() -> None:
    found = peaks(CPU, torch.float32)
    assert "measured" in found.source
    # Any processor of this century does more, and none of this one that much.
    assert 1e8 < found.flops_per_s < 1e15
    assert 1e7 < found.bytes_per_s < 1e14
