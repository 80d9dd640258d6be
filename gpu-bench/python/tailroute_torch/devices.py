"""The device that computes: what it is, how well it could do, and how long something took on it."""

from __future__ import annotations

import platform
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from .roofline import Peaks

# Operations per cycle and multiprocessor of the tensor cores in bf16, dense, by compute capability: NVIDIA's tuning
# guides. What is not listed is measured: of 8.6 and 8.9 there are cards for games and for servers at different rates.
_TENSOR_FLOPS_PER_CYCLE = {(8, 0): 2048, (8, 7): 1024, (9, 0): 4096}

_MEASURED_FOR_S = 0.5


class DeviceError(Exception):
    """What was asked for is not there."""


def choose(name: str) -> torch.device:
    """``auto`` is the first CUDA device, or the processor."""
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise DeviceError(f"--device {name}: expected auto, cpu, cuda or cuda:N") from None
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise DeviceError(f"--device {name}: only cpu and cuda are supported")
    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) >= seen:
        raise DeviceError(f"--device {name}: this torch sees {seen} CUDA devices; is the driver installed?")
    return torch.device("cuda", device.index or 0)


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """bf16, unless this is a processor that multiplies matrices faster in fp32."""
    if name == "bf16" or (name == "auto" and device.type == "cuda"):
        return torch.bfloat16
    if name == "fp32":
        return torch.float32
    speed = {dtype: _matmul_flops_per_s(device, dtype) for dtype in (torch.bfloat16, torch.float32)}
    return max(speed, key=lambda dtype: speed[dtype])


def dtype_name(dtype: torch.dtype) -> str:
    return {torch.bfloat16: "bf16", torch.float32: "fp32"}[dtype]


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{_processor()}, {threads} thread{'s' if threads > 1 else ''}"


def driver(device: torch.device) -> str:
    """Of an accelerator its driver, of a processor the instructions that torch uses."""
    if device.type == "cpu":
        return f"{torch.backends.cpu.get_cpu_capability()}, {platform.system()} {platform.release()}"
    if torch.version.hip:
        return f"HIP {torch.version.hip}"
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", f"--id={device.index}"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        said = "of unknown version"
    return f"NVIDIA driver {said}, CUDA {torch.version.cuda}"


def free_bytes(device: torch.device) -> int:
    """Memory that may still be taken."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    for line in Path("/proc/meminfo").read_text().splitlines() if Path("/proc/meminfo").exists() else ():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 8 << 30


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Stopwatch:
    """Times between marks, on the device's own clock where it has one."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: list[torch.cuda.Event] = []
        self._seconds: list[float] = []

    def mark(self) -> None:
        if self._device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(self._device))
            self._events.append(event)
        else:
            self._seconds.append(time.perf_counter())

    def laps_ms(self) -> list[float]:
        """Between each mark and the next; waits for the last one."""
        if self._device.type == "cuda":
            self._events[-1].synchronize()
            return [a.elapsed_time(b) for a, b in zip(self._events, self._events[1:], strict=False)]
        return [1e3 * (b - a) for a, b in zip(self._seconds, self._seconds[1:], strict=False)]


def peaks(device: torch.device, dtype: torch.dtype) -> Peaks:
    """From the driver where it says them, else measured."""
    if device.type == "cuda" and torch.version.cuda and dtype == torch.bfloat16:
        facts = torch.cuda.get_device_properties(device)
        said = DriverFacts(
            capability=(facts.major, facts.minor),
            multiprocessors=facts.multi_processor_count,
            clock_khz=getattr(facts, "clock_rate", 0),
            memory_clock_khz=getattr(facts, "memory_clock_rate", 0),
            memory_bus_bits=getattr(facts, "memory_bus_width", 0),
        )
        if from_driver := driver_peaks(said):
            return from_driver
    return Peaks(
        _matmul_flops_per_s(device, dtype),
        _copy_bytes_per_s(device),
        f"measured here: the best of matrix products in {dtype_name(dtype)} and of memory copies",
    )


@dataclass(frozen=True)
class DriverFacts:
    """What the CUDA driver says of a device."""

    capability: tuple[int, int]
    multiprocessors: int
    clock_khz: int
    memory_clock_khz: int
    memory_bus_bits: int


def driver_peaks(facts: DriverFacts) -> Peaks | None:
    """Peaks in bf16, dense, at the highest clock; ``None`` where the driver does not say enough."""
    per_cycle = _TENSOR_FLOPS_PER_CYCLE.get(facts.capability, 0)
    flops_per_s = per_cycle * facts.multiprocessors * facts.clock_khz * 1e3
    # Two transfers per cycle of the memory's clock.
    bytes_per_s = 2 * facts.memory_clock_khz * 1e3 * facts.memory_bus_bits / 8
    if flops_per_s <= 0 or bytes_per_s <= 0:
        return None
    source = "the driver: tensor cores, clock and bus width, at the highest clock"
    return Peaks(flops_per_s, bytes_per_s, source)


def _matmul_flops_per_s(device: torch.device, dtype: torch.dtype) -> float:
    size = 8192 if device.type == "cuda" else 1024
    a, b = (torch.rand(size, size, device=device).to(dtype) for _ in range(2))
    return 2.0 * size**3 / _best_s(device, lambda: a @ b)


def _copy_bytes_per_s(device: torch.device) -> float:
    """Reading and writing, far beyond the caches."""
    numbers = (1 << 30 if device.type == "cuda" else 1 << 27) // 4
    a, b = (torch.ones(numbers, device=device) for _ in range(2))
    return 2.0 * 4 * numbers / _best_s(device, lambda: b.copy_(a))


def _best_s(device: torch.device, act: Callable[[], object]) -> float:
    act()
    best, end = float("inf"), time.perf_counter() + _MEASURED_FOR_S
    while time.perf_counter() < end:
        watch = Stopwatch(device)
        watch.mark()
        act()
        watch.mark()
        best = min(best, watch.laps_ms()[0] / 1e3)
    return best


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
