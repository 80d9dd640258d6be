"""What a prefill has to do at least, from the shapes alone, and what a device could do at best.

Of a prefill of u new tokens over h cached ones, and of the logits of its last token::

    flops = layers * (2 * u * W + 4 * q * (u * h + u * (u + 1) / 2)) + 2 * d * V
    bytes = element * (layers * (W + 2 * kv * (h + u) + 2 * kv * u) + u * d + d * V)

W: numbers in a layer's matrices; q, kv: widths of queries and of keys (heads times head size); d: hidden size; V:
vocabulary. A multiplication with an addition counts as two operations; a token attends to those before it and itself,
so the triangle above the diagonal is not counted even where a kernel computes it. Bytes: every weight once, the
context's keys and values read, the new ones written, the new tokens' embeddings read. What stays in the device's own
caches may be less, what spills between kernels is more: it is a bound, not a prediction. Norms, rotary embedding and
activations are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from .shapes import Shape


@dataclass(frozen=True)
class Work:
    """Of one prefill."""

    flops: float
    bytes: float


@dataclass(frozen=True)
class Peaks:
    """Of one device, and who says so."""

    flops_per_s: float
    bytes_per_s: float
    source: str

    def least_ms(self, work: Work) -> float:
        """The time in which the device could do the work if it reached its peaks."""
        return 1e3 * max(work.flops / self.flops_per_s, work.bytes / self.bytes_per_s)


def prefill_work(shape: Shape, cached: int, new: int, element_bytes: int) -> Work:
    """See the module's documentation."""
    pairs = new * cached + new * (new + 1) / 2
    layer_flops = 2 * new * shape.layer_weights + 4 * shape.query_width * pairs
    kv_moved = 2 * shape.kv_width * (cached + new) + 2 * shape.kv_width * new
    layer_numbers = shape.layer_weights + kv_moved
    outside = new * shape.hidden + shape.head_weights
    return Work(
        flops=shape.layers * layer_flops + 2 * shape.head_weights,
        bytes=element_bytes * (shape.layers * layer_numbers + outside),
    )
