"""The decoder: embedding, layers, and logits of the tokens that are asked for."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .layers import Layer, Rotary
from .paged import KvPool, Step
from .shapes import Shape

# As models of this kind are initialised; activations then stay of the order of 1.
_WEIGHT_STD = 0.02


class Decoder(nn.Module):
    """A decoder-only transformer. Its three stages are apart, so that each can be timed."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, eps=shape.norm_eps)
        self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)
        self.rotary = Rotary(shape, device)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.embedding(tokens)

    def run_layers(self, x: Tensor, pool: KvPool, step: Step) -> Tensor:
        """Hidden states of the step's tokens; their keys and values are in the pool afterwards."""
        angles = self.rotary.angles(step.positions, x.dtype)
        for layer, keys, values in zip(self.layers, pool.keys, pool.values, strict=True):
            x = layer(x, angles, keys, values, step)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        return self.head(self.norm(hidden))

    def forward(self, tokens: Tensor, pool: KvPool, step: Step) -> Tensor:
        """Hidden states of ``tokens``."""
        return self.run_layers(self.embed(tokens), pool, step)


def random_decoder(shape: Shape, device: torch.device, dtype: torch.dtype, seed: int) -> Decoder:
    """A decoder with random weights, the same for the same seed, device and type."""
    rotary_device = device
    with torch.device("meta"):
        model = Decoder(shape, torch.device("meta"))
    model = model.to(dtype).to_empty(device=device)
    model.rotary = Rotary(shape, rotary_device)
    generator = torch.Generator(device).manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.fill_(1.0)
            else:
                weight.normal_(0.0, _WEIGHT_STD, generator=generator)
    return model.eval().requires_grad_(False)
