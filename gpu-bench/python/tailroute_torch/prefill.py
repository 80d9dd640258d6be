"""Timed prefills of new tokens over cached ones: the measurement without its protocol.

The cached prefix is real: its keys and values were computed by the same model. It is one text, of which every
measurement reuses the beginning that it asks for, and it is computed as far as it was asked for, untimed. The new
tokens are drawn anew each time and go into blocks of their own, so that the prefix stays.

Where only some of a model's layers are held, the time of the layers is scaled to all of them; embedding and logits,
which are timed apart, are not. What is reported then is an extrapolation, and is named so.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from . import devices
from .model import random_decoder
from .paged import KvPool
from .roofline import Work, prefill_work
from .shapes import Shape

# Of the prefix, computed at once.
_PREFIX_STEP_TOKENS = 1024


class TooLongError(Exception):
    """More tokens than there is room for."""


@dataclass(frozen=True)
class Timed:
    """One prefill."""

    cached_tokens: int
    uncached_tokens: int
    # Of the whole model, scaled where only some layers are held.
    prefill_ms: float
    work: Work


class Prefills:
    """A model with a cached prefix, ready to be timed."""

    def __init__(
        self,
        shape: Shape,
        held_layers: int,
        device: torch.device,
        dtype: torch.dtype,
        context_tokens: int,
        block_tokens: int,
        seed: int,
    ) -> None:
        self.shape, self.device, self.dtype = shape, device, dtype
        self.held_layers, self.context_tokens = held_layers, context_tokens
        held = shape.of_layers(held_layers)
        self._model = random_decoder(held, device, dtype, seed)
        # Room for the prefix, and as much for what is new.
        blocks = -(-context_tokens // block_tokens)
        self._pool = KvPool(held, 2 * blocks, block_tokens, device, dtype)
        self._prefix_blocks = list(range(blocks))
        self._new_blocks = list(range(blocks, 2 * blocks))
        self._random = torch.Generator().manual_seed(seed)
        self._prefix = self._draw(context_tokens)
        self._prefix_computed = 0
        self._warm: set[tuple[int, int]] = set()

    @torch.inference_mode()
    def measure(self, cached: int, new: int) -> Timed:
        """Times one prefill of ``new`` tokens over ``cached`` ones, rounded down to whole blocks."""
        if cached + new > self.context_tokens:
            raise TooLongError(f"{cached} + {new} tokens are more than the context of {self.context_tokens}")
        size = self._pool.block_tokens
        cached -= cached % size
        self._extend_prefix(cached)
        if (cached, new) not in self._warm:
            # Kernels are chosen, and memory is taken, when a size is seen for the first time.
            self._prefill_ms(cached, new)
            self._warm.add((cached, new))
        work = prefill_work(self.shape, cached, new, self.dtype.itemsize)
        return Timed(cached, new, self._prefill_ms(cached, new), work)

    def _prefill_ms(self, cached: int, new: int) -> float:
        size = self._pool.block_tokens
        tokens = self._draw(new)
        step = self._pool.prefill(self._prefix_blocks[: cached // size] + self._new_blocks, cached, new)
        devices.synchronise(self.device)
        watch = devices.Stopwatch(self.device)
        watch.mark()
        hidden = self._model.embed(tokens)
        watch.mark()
        hidden = self._model.run_layers(hidden, self._pool, step)
        watch.mark()
        self._model.logits(hidden[-1:]).argmax()
        watch.mark()
        embedding, layers, head = watch.laps_ms()
        return embedding + layers * self.shape.layers / self.held_layers + head

    def _extend_prefix(self, wanted: int) -> None:
        while self._prefix_computed < wanted:
            done = self._prefix_computed
            new = min(_PREFIX_STEP_TOKENS, wanted - done)
            step = self._pool.prefill(self._prefix_blocks, done, new)
            self._model(self._prefix[done : done + new], self._pool, step)
            self._prefix_computed = done + new

    def _draw(self, count: int) -> torch.Tensor:
        return torch.randint(self.shape.vocabulary, (count,), generator=self._random).to(self.device)
