"""Which token is said next: by temperature and seed, the same for the same request."""

from __future__ import annotations

import torch


class Sampler:
    """Draws tokens of one reply."""

    def __init__(self, seed: int, temperature: float) -> None:
        self._temperature = temperature
        self._generator = torch.Generator().manual_seed(seed)

    def pick(self, logits: torch.Tensor) -> int:
        """An index into ``logits``, a row on the processor."""
        if self._temperature == 0:
            return int(logits.argmax())
        # The largest of the logits with Gumbel noise on them is a draw from their softmax.
        noise = torch.empty_like(logits).exponential_(generator=self._generator)
        return int((logits / self._temperature - noise.log()).argmax())
