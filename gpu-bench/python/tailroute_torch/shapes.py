"""Shapes of known models: everything of a model that its speed depends on."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Shape:
    """A Llama-like decoder: RMSNorm, rotary embedding, grouped-query attention, SwiGLU."""

    name: str
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    rope_theta: float
    norm_eps: float
    # Whether the projections to queries, keys and values have a bias.
    qkv_bias: bool
    # Tokens of prompt and reply that the model was made for.
    context_tokens: int

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def layer_weights(self) -> int:
        """Numbers in the matrices of one layer. Norms and biases are left out: they are a ten-thousandth of it."""
        attention = self.hidden * (2 * self.query_width + 2 * self.kv_width)
        return attention + 3 * self.hidden * self.intermediate

    @property
    def head_weights(self) -> int:
        """Numbers in the matrix that turns the last hidden state into logits."""
        return self.hidden * self.vocabulary

    def weights(self) -> int:
        """Numbers in all matrices, the embedding's included."""
        return self.layers * self.layer_weights + 2 * self.head_weights

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """Keys and values of one token in all layers."""
        return 2 * self.layers * self.kv_width * element_bytes

    def of_layers(self, layers: int) -> Shape:
        """The same shape with another number of layers."""
        return replace(self, layers=layers)


_ALL = (
    # For tests and small machines: no known model.
    Shape("tiny", 8192, 256, 4, 8, 2, 32, 768, 10_000.0, 1e-5, False, 8192),
    Shape("vicuna-7b", 32_000, 4096, 32, 32, 32, 128, 11_008, 10_000.0, 1e-5, False, 4096),
    Shape("llama-3-8b", 128_256, 4096, 32, 32, 8, 128, 14_336, 500_000.0, 1e-5, False, 8192),
    Shape("qwen2-7b", 152_064, 3584, 28, 28, 4, 128, 18_944, 1_000_000.0, 1e-6, True, 32_768),
)

SHAPES: dict[str, Shape] = {shape.name: shape for shape in _ALL}
