"""Where keys and values are kept: blocks of a fixed number of tokens, which a table strings together for each sequence.

A block that several sequences begin with is held once: their tables name the same block. That is what a prefix cache
reuses, here as in the engines.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from .shapes import Shape


class KvPool:
    """Room for ``blocks`` blocks of ``block_tokens`` tokens, in every layer."""

    def __init__(self, shape: Shape, blocks: int, block_tokens: int, device: torch.device, dtype: torch.dtype) -> None:
        self.blocks = blocks
        self.block_tokens = block_tokens
        self.device = device
        size = (blocks, block_tokens, shape.kv_heads, shape.head_dim)
        # Zeros and not whatever was there: masked places have no weight, but nothing times NaN is NaN.
        self.keys = [torch.zeros(size, device=device, dtype=dtype) for _ in range(shape.layers)]
        self.values = [torch.zeros(size, device=device, dtype=dtype) for _ in range(shape.layers)]

    def prefill(self, table: list[int], cached: int, new: int) -> Prefill:
        """The step that computes ``new`` tokens over ``cached`` ones; ``table`` has the blocks of all of them."""
        size = self.block_tokens
        used = -(-(cached + new) // size)
        blocks = torch.tensor(table[:used], device=self.device)
        positions = torch.arange(cached, cached + new, device=self.device)
        write = blocks[positions // size] * size + positions % size
        return Prefill(positions, write, blocks, cached, self._bias(cached, new))

    def _bias(self, cached: int, new: int) -> Tensor | None:
        """New tokens are the last ones, so the triangle is aligned to the lower right corner."""
        if cached == 0 or new == 1:
            return None
        if self.device.type == "cuda":
            # A name for the triangle, by which kernels leave out what lies above it.
            return causal_lower_right(new, cached + new)
        whole = torch.ones(new, cached + new, dtype=torch.bool, device=self.device)
        return whole.tril(cached)

    def decode(self, tables: list[list[int]], lengths: list[int]) -> Decode:
        """The step that computes one token of each sequence, at the place ``length``, over those before it."""
        size = self.block_tokens
        longest = max(length // size + 1 for length in lengths)
        padded = [table[:longest] + [0] * (longest - len(table)) for table in tables]
        blocks = torch.tensor(padded, device=self.device)
        positions = torch.tensor(lengths, device=self.device)
        last = blocks.gather(1, (positions // size).unsqueeze(1)).squeeze(1)
        places = torch.arange(longest * size, device=self.device)
        seen = places.unsqueeze(0) <= positions.unsqueeze(1)
        return Decode(positions, last * size + positions % size, blocks, seen)


@dataclass(frozen=True)
class Prefill:
    """Several tokens of one sequence."""

    # Of the new tokens in their sequence.
    positions: Tensor
    # Where their keys and values go, counted in tokens over all blocks.
    write: Tensor
    # The sequence's blocks, in order.
    blocks: Tensor
    # Tokens before the new ones.
    cached: int
    # What each new token sees; None: everything before it, without cached tokens, or everything, if it is one token.
    bias: Tensor | None


@dataclass(frozen=True)
class Decode:
    """One token each of several sequences."""

    positions: Tensor
    write: Tensor
    # A row per sequence, filled up with any block at its end.
    blocks: Tensor
    # Which places of that row each sequence has reached.
    seen: Tensor


Step = Prefill | Decode
