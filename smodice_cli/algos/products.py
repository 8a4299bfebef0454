"""Matrix products on the processor, by oneDNN where its processor has AVX-512.

Torch multiplies matrices by MKL, which uses AVX-512 on Intel's processors alone; oneDNN, which torch brings as well,
uses it on AMD's, too, and takes half the time there. Elsewhere, on a device, and where oneDNN is switched off
(`torch.backends.mkldnn`), the products are torch's.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


@cache
def _there() -> bool:
    """Whether torch has oneDNN's product, and the processor the instructions that make it worth while."""
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return wide and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _by_onednn(x: Tensor) -> bool:
    suits = x.device.type == "cpu" and x.dtype == torch.float32 and x.numel() > 0
    return suits and _there() and bool(torch.backends.mkldnn.enabled)


def product(a: Tensor, b: Tensor) -> Tensor:
    """a b, without a gradient of its own."""
    if _by_onednn(a):
        return torch.ops.mkldnn._linear_pointwise(a, b.T, None, "none", [], "")
    return a @ b


def activated(x: Tensor, weight: Tensor, bias: Tensor, activation: str) -> Tensor:
    """relu or tanh of x weight^T + bias, in one pass where that can be, without a gradient of its own."""
    if _by_onednn(x):
        fused = "none" if activation == "relu" else activation  # its relu of NaN is 0, which would hide a divergence
        found = torch.ops.mkldnn._linear_pointwise(x, weight, bias, fused, [], "")
        return found.relu_() if activation == "relu" else found
    if activation == "relu":
        return torch.addmm(bias, x, weight.T).relu_()
    # tanh as 2 sigmoid(2x) - 1, which takes half the time of torch's own.
    return torch.addmm(bias, x, weight.T, beta=2, alpha=2).sigmoid_().mul_(2).sub_(1)
