"""Tail-Optimized LRU for vLLM's prefix cache, told by a router what it may drop first. See the README."""

from __future__ import annotations


def register() -> None:
    """Entry point ``vllm.general_plugins``: called by vLLM in each of its processes."""
    from . import install

    try:
        install.install()
    except install.Unsupported as reason:
        install.log.error("tailroute: not loaded, prefix caching stays vLLM's own: %s", reason)
