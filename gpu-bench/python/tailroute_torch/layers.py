"""The parts of a decoder layer. Projections with the same input are one matrix, as engines have them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from .paged import Decode, Prefill, Step
from .shapes import Shape


class Rotary:
    """Turns each pair of a head's numbers by an angle that grows with the token's place."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        pairs = torch.arange(0, shape.head_dim, 2, device=device, dtype=torch.float32)
        self._frequencies = shape.rope_theta ** (-pairs / shape.head_dim)

    def angles(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines, with room for the heads: (tokens, 1, head_dim)."""
        angles = positions.float().unsqueeze(1) * self._frequencies
        both = torch.cat((angles, angles), dim=1).unsqueeze(1)
        return both.cos().to(dtype), both.sin().to(dtype)


def rotate(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Applies a rotary embedding; ``x`` is (tokens, heads, head_dim)."""
    cos, sin = angles
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    """Grouped-query attention over a paged cache."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.qkv = nn.Linear(shape.hidden, shape.query_width + 2 * shape.kv_width, bias=shape.qkv_bias)
        self.out = nn.Linear(shape.query_width, shape.hidden, bias=False)

    def forward(self, x: Tensor, angles: tuple[Tensor, Tensor], keys: Tensor, values: Tensor, step: Step) -> Tensor:
        shape = self.shape
        widths = [shape.query_width, shape.kv_width, shape.kv_width]
        query, key, value = self.qkv(x).split(widths, dim=-1)
        query = rotate(query.unflatten(-1, (shape.heads, shape.head_dim)), angles)
        key = rotate(key.unflatten(-1, (shape.kv_heads, shape.head_dim)), angles)
        keys.flatten(0, 1).index_copy_(0, step.write, key)
        values.flatten(0, 1).index_copy_(0, step.write, value.unflatten(-1, (shape.kv_heads, shape.head_dim)))
        if isinstance(step, Prefill):
            return self.out(_prefill(query, keys, values, step))
        return self.out(_decode(query, keys, values, step))


def _prefill(query: Tensor, keys: Tensor, values: Tensor, step: Prefill) -> Tensor:
    new, heads = query.shape[0], query.shape[1]
    context = step.cached + new
    # (blocks, block, heads, dim) -> (1, heads, context, dim)
    key, value = (kept[step.blocks].flatten(0, 1)[:context].transpose(0, 1).unsqueeze(0) for kept in (keys, values))
    said = functional.scaled_dot_product_attention(
        query.transpose(0, 1).unsqueeze(0),
        key,
        value,
        attn_mask=step.bias,
        is_causal=step.bias is None and new > 1,
        enable_gqa=heads != key.shape[1],
    )
    return said.squeeze(0).transpose(0, 1).flatten(1)


def _decode(query: Tensor, keys: Tensor, values: Tensor, step: Decode) -> Tensor:
    # (sequences, blocks, block, heads, dim) -> (sequences, heads, places, dim)
    key, value = (kept[step.blocks].flatten(1, 2).transpose(1, 2) for kept in (keys, values))
    said = functional.scaled_dot_product_attention(
        query.unsqueeze(2),
        key,
        value,
        attn_mask=step.seen[:, None, None, :],
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return said.squeeze(2).flatten(1)


class SwiGlu(nn.Module):
    """The feed-forward part: silu(gate) times up, then down."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_up = nn.Linear(shape.hidden, 2 * shape.intermediate, bias=False)
        self.down = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(functional.silu(gate) * up)


class Layer(nn.Module):
    """Attention and feed-forward, each behind a norm and added to what came in."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.hidden, eps=shape.norm_eps)
        self.attention = Attention(shape)
        self.feed_forward_norm = nn.RMSNorm(shape.hidden, eps=shape.norm_eps)
        self.feed_forward = SwiGlu(shape)

    def forward(self, x: Tensor, angles: tuple[Tensor, Tensor], keys: Tensor, values: Tensor, step: Step) -> Tensor:
        x = x + self.attention(self.attention_norm(x), angles, keys, values, step)
        return x + self.feed_forward(self.feed_forward_norm(x))
