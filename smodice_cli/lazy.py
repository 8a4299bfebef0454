"""Packages that take long to import, imported when they are first used: `from smodice_cli.lazy import np, torch`.

So every module may be imported by every command, and `smodice --help` still answers at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any


class Lazy:
    """Stands for a module until something of it is asked for, and hands that on."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(importlib.import_module(self._name), attribute)
        setattr(self, attribute, found)  # from now on as quick as the module itself
        return found


if TYPE_CHECKING:
    import h5py as h5py
    import numpy as np
    import scipy.sparse as sparse
    import torch as torch
    import torch.nn.functional as functional
    from torch import Generator, Tensor
    from torch import device as Device
else:
    Tensor = Generator = Device = Any  # which only annotations name
    h5py, np, sparse, torch, functional = map(Lazy, ("h5py", "numpy", "scipy.sparse", "torch", "torch.nn.functional"))
