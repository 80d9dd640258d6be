"""A real decoder-only transformer with random weights, to measure and to serve.

What a prefill costs depends on the shapes of a model's matrices and not on what is in them. So random weights of a
known model's shape tell what that model would cost on this machine, without its weights: ``measure`` times prefills of
new tokens over cached ones for ``gpu-bench gpu``, ``serve`` puts the same model behind the HTTP surface of an engine.

Reading order: ``shapes``, ``paged`` (where keys and values are kept), ``layers``, ``model``, ``roofline``, ``devices``,
``measure``; then ``serve``.
"""

__version__ = "0.1.0"
