"""The model computes what its formulas say, whichever way its tokens come in."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch
from conftest import CPU, MICRO, decoder

from tailroute_torch.model import Decoder
from tailroute_torch.paged import KvPool
from tailroute_torch.shapes import SHAPES, Shape

BLOCK = 8
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}

MULTI_HEAD = dataclasses.replace(MICRO, name="multi-head", kv_heads=4)
WITH_BIAS = dataclasses.replace(MICRO, name="bias", qkv_bias=True, kv_heads=1)


def pool(shape: Shape, blocks: int = 40) -> KvPool:
    return KvPool(shape, blocks, BLOCK, CPU, torch.float32)


def some_tokens(count: int, seed: int = 5) -> torch.Tensor:
    return torch.randint(MICRO.vocabulary, (count,), generator=torch.Generator().manual_seed(seed))


def shuffled(blocks: int) -> list[int]:
    table = list(range(blocks))
    random.Random(11).shuffle(table)
    return table


@torch.inference_mode()
def at_once(model: Decoder, tokens: torch.Tensor) -> torch.Tensor:
    kept = pool(model.shape)
    return model(tokens, kept, kept.prefill(list(range(40)), 0, len(tokens)))


@pytest.mark.parametrize("shape", [MICRO, MULTI_HEAD, WITH_BIAS], ids=lambda shape: shape.name)
@pytest.mark.parametrize("cached", [8, 24, 56])
def test_over_a_cached_prefix_the_rest_is_what_it_is_at_once(shape: Shape, cached: int) -> None:
    model, tokens = decoder(shape), some_tokens(61)
    kept, table = pool(shape), shuffled(40)
    with torch.inference_mode():
        model(tokens[:cached], kept, kept.prefill(table, 0, cached))
        rest = model(tokens[cached:], kept, kept.prefill(table, cached, len(tokens) - cached))
    torch.testing.assert_close(rest, at_once(model, tokens)[cached:], **TOLERANCE)


def test_the_cached_prefix_matters() -> None:
    model, tokens = decoder(), some_tokens(40)
    other = torch.cat((some_tokens(32, seed=6), tokens[32:]))
    assert not torch.allclose(at_once(model, tokens)[32:], at_once(model, other)[32:], atol=1e-3)


@pytest.mark.parametrize("shape", [MICRO, MULTI_HEAD, WITH_BIAS], ids=lambda shape: shape.name)
def test_it_is_what_the_formulas_say(shape: Shape) -> None:
    model, tokens = decoder(shape), some_tokens(21)
    torch.testing.assert_close(at_once(model, tokens), naive(model, tokens), **TOLERANCE)


def test_a_batch_of_replies_is_what_each_is_alone() -> None:
    model = decoder()
    texts = [some_tokens(length, seed=length) for length in (9, 30, 16)]
    kept, tables = pool(MICRO), [shuffled(40)[at * 6 : at * 6 + 6] for at in range(3)]
    with torch.inference_mode():
        for text, table in zip(texts, tables, strict=True):
            model(text[:-1], kept, kept.prefill(table, 0, len(text) - 1))
        lengths = [len(text) - 1 for text in texts]
        last = model(torch.stack([text[-1] for text in texts]), kept, kept.decode(tables, lengths))
    alone = torch.stack([at_once(model, text)[-1] for text in texts])
    torch.testing.assert_close(last, alone, **TOLERANCE)


def test_the_same_seed_makes_the_same_model() -> None:
    tokens = some_tokens(5)
    assert torch.equal(at_once(decoder(), tokens), at_once(decoder(), tokens))


def test_the_shapes_have_the_sizes_of_their_models() -> None:
    # In thousand millions, as their makers give them.
    known = {"vicuna-7b": 6.74, "llama-3-8b": 8.03, "qwen2-7b": 7.62}
    assert {name: round(SHAPES[name].weights() / 1e9, 2) for name in known} == known
    # Llama-3-8B in bf16: 128 KiB of keys and values per token; Vicuna-7B, without groups of queries, four times that.
    assert SHAPES["llama-3-8b"].kv_bytes_per_token(2) == 128 << 10
    assert SHAPES["vicuna-7b"].kv_bytes_per_token(2) == 512 << 10


def test_weights_are_counted_as_they_are_held() -> None:
    held = sum(weight.numel() for weight in decoder().parameters() if weight.dim() == 2)
    assert held == MICRO.weights()


@torch.inference_mode()
def naive(model: Decoder, tokens: torch.Tensor) -> torch.Tensor:
    """Token by token and head by head, without a cache: slow, and plain."""
    shape = model.shape
    x = model.embedding.weight[tokens]
    for layer in model.layers:
        x = x + naive_attention(layer.attention, norm(x, layer.attention_norm.weight, shape.norm_eps), shape)
        y = norm(x, layer.feed_forward_norm.weight, shape.norm_eps)
        gate, up = (y @ layer.feed_forward.gate_up.weight.T).split(shape.intermediate, dim=1)
        x = x + (gate / (1 + torch.exp(-gate)) * up) @ layer.feed_forward.down.weight.T
    return x


def naive_attention(attention: torch.nn.Module, x: torch.Tensor, shape: Shape) -> torch.Tensor:
    both = x @ attention.qkv.weight.T
    if shape.qkv_bias:
        both = both + attention.qkv.bias
    query, key, value = both.split([shape.query_width, shape.kv_width, shape.kv_width], dim=1)
    said = torch.zeros_like(query)
    size, group = shape.head_dim, shape.heads // shape.kv_heads
    for head in range(shape.heads):
        mine = slice(head * size, (head + 1) * size)
        shared = slice(head // group * size, (head // group + 1) * size)
        for at in range(len(x)):
            q = turned(query[at, mine], at, shape)
            scores = torch.stack([q @ turned(key[past, shared], past, shape) for past in range(at + 1)])
            weights = torch.exp(scores / size**0.5)
            said[at, mine] = (weights / weights.sum()) @ value[: at + 1, shared]
    return said @ attention.out.weight.T


def turned(x: torch.Tensor, place: int, shape: Shape) -> torch.Tensor:
    """Pair by pair, each by its own angle."""
    half, out = shape.head_dim // 2, x.clone()
    for pair in range(half):
        angle = torch.tensor(place * shape.rope_theta ** (-2 * pair / shape.head_dim))
        a, b = x[pair], x[pair + half]
        out[pair] = a * torch.cos(angle) - b * torch.sin(angle)
        out[pair + half] = b * torch.cos(angle) + a * torch.sin(angle)
    return out


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x / torch.sqrt((x * x).mean(dim=1, keepdim=True) + eps) * weight
