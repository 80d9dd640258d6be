"""What ``measure`` and ``serve`` have in common: which model, on what, in which type."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch

from . import devices
from .shapes import SHAPES, Shape


class SetupError(Exception):
    """What was asked for cannot be built here."""


@dataclass(frozen=True)
class Ready:
    """Checked, and chosen where it was left open."""

    shape: Shape
    held_layers: int
    device: torch.device
    dtype: torch.dtype

    @property
    def weight_bytes(self) -> int:
        return self.shape.of_layers(self.held_layers).weights() * self.dtype.itemsize


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", choices=sorted(SHAPES), default="tiny", help="whose shape (default: tiny)")
    parser.add_argument("--device", default="auto", help="cpu, cuda or cuda:N (default: auto)")
    parser.add_argument(
        "--dtype",
        choices=["auto", "bf16", "fp32"],
        default="auto",
        help="auto: bf16, or fp32 on a processor that multiplies matrices faster in it",
    )
    parser.add_argument("--layers", type=int, metavar="N", help="hold only so many layers (default: all)")
    parser.add_argument("--block-tokens", type=int, default=16, metavar="N", help="per cache block (default: 16)")
    parser.add_argument("--threads", type=int, metavar="N", help="of a processor (default: its cores)")
    parser.add_argument("--seed", type=int, default=1, help="of weights and tokens (default: 1)")


def prepare(args: argparse.Namespace) -> Ready:
    shape = SHAPES[args.shape]
    held = shape.layers if args.layers is None else args.layers
    if not 1 <= held <= shape.layers:
        raise SetupError(f"--layers {held}: {shape.name} has 1 to {shape.layers}")
    if not 1 <= args.block_tokens <= 1024:
        raise SetupError(f"--block-tokens {args.block_tokens}: expected 1 to 1024")
    if args.threads is not None:
        if not 1 <= args.threads <= 1024:
            raise SetupError(f"--threads {args.threads}: expected 1 to 1024")
        torch.set_num_threads(args.threads)
    if not 0 <= args.seed < 1 << 63:
        raise SetupError(f"--seed {args.seed}: expected a number from 0 to 2^63 - 1")
    try:
        device = devices.choose(args.device)
    except devices.DeviceError as error:
        raise SetupError(str(error)) from None
    ready = Ready(shape, held, device, devices.choose_dtype(args.dtype, device))
    needed, free = ready.weight_bytes >> 20, devices.free_bytes(device) >> 20
    if needed > free * 9 // 10:
        raise SetupError(
            f"--shape {shape.name}: {held} layers in {devices.dtype_name(ready.dtype)} take {needed} MiB of the {free} "
            "that are free; hold fewer with --layers"
        )
    return ready
