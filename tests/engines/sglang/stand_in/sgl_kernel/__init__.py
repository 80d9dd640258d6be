"""Stands in for SGLang's CUDA kernels, which it imports on any machine: on a CPU, with torch's own attention, none is called.

Whatever is asked of it is there; what is called raises.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types


class Kernel:
    """One that is not here."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *_: object, **__: object) -> None:
        raise NotImplementedError(f"{self._name} needs a GPU")

    def __getattr__(self, name: str) -> Kernel:
        return _named(self._name, name)


def _named(parent: str, name: str) -> Kernel:
    if name.startswith("__"):
        raise AttributeError(name)
    return Kernel(f"{parent}.{name}")


class Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Every submodule is there."""

    def find_spec(self, name, path=None, target=None):
        if name.startswith(f"{__name__}."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: _named(spec.name, name)
        return module

    def exec_module(self, module):
        """Nothing to run."""


sys.meta_path.append(Submodules())


def __getattr__(name: str) -> Kernel:
    return _named(__name__, name)
