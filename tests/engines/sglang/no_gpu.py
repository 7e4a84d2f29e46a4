"""To be imported before SGLang: stands in for what it imports to compute on a GPU. What is tested is
how it keeps and moves pages in memory of the host, which needs none of it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from unittest import mock

import torch

# These look for triton, and must not find one that is none.
import torch.utils.flop_counter  # noqa: F401
import transformers  # noqa: F401


class _Module(types.ModuleType):
    __path__: list[str] = []

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        value = mock.MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class _Triton(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The kernels' language: 200 MB, of which nothing would run."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] != "triton":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module) -> None:
        """There is nothing in it."""


sys.meta_path.insert(0, _Triton())
# SGLang takes kernels from it where it is installed, as it is in this environment.
sys.modules["vllm"] = None
# Functions are compiled for a GPU when they are defined.
torch.compile = lambda function=None, **options: function or (lambda compiled: compiled)
