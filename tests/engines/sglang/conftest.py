"""The real SGLang package, imported without a GPU: what cannot be installed here is stood in for."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from unittest.mock import MagicMock

# CUDA kernels, and two imports that nothing here calls.
STAND_INS = {"sgl_kernel", "IPython", "gguf"}


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes modules that have everything and do nothing."""

    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in STAND_INS:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = MagicMock(name=spec.name)
        module.__name__, module.__path__, module.__spec__ = spec.name, [], spec
        return module

    def exec_module(self, module):
        """Nothing to run."""


sys.meta_path.append(StandIns())
