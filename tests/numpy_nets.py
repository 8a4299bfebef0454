"""Networks with gradients by hand, for updates that are computed twice; no tests."""

from __future__ import annotations

from typing import Any

import numpy as np


class NumpyNet:
    """Two hidden ReLU layers with gradients by hand; weights are (inputs, outputs)."""

    def __init__(self, weights: list[np.ndarray], biases: list[np.ndarray]) -> None:
        self.parameters = [w.copy() for w in weights] + [b.copy() for b in biases]
        self.moments = [(np.zeros_like(p), np.zeros_like(p)) for p in self.parameters]
        self.count = 0

    def copy(self) -> NumpyNet:
        return NumpyNet(self.parameters[:3], self.parameters[3:])

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.inputs = []
        for layer in range(3):
            self.inputs.append(x if layer == 0 else np.maximum(x, 0))
            x = self.inputs[-1] @ self.parameters[layer] + self.parameters[3 + layer]
        return x

    def backward(self, gradient: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        weights, biases = [], []
        for layer in (2, 1, 0):
            weights.insert(0, self.inputs[layer].T @ gradient)
            biases.insert(0, gradient.sum(0))
            gradient = gradient @ self.parameters[layer].T
            if layer:
                gradient = gradient * (self.inputs[layer] > 0)
        return weights + biases, gradient

    def adam(self, gradients: list[np.ndarray], lr: float) -> None:
        self.count += 1
        for p, g, (m, v) in zip(self.parameters, gradients, self.moments, strict=True):
            m += 0.1 * (g - m)
            v += 0.001 * (g**2 - v)
            p -= lr * (m / (1 - 0.9**self.count)) / (np.sqrt(v / (1 - 0.999**self.count)) + 1e-8)

    def follow(self, other: NumpyNet, tau: float) -> None:
        for p, o in zip(self.parameters, other.parameters, strict=True):
            p += tau * (o - p)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def own(*tensors: Any) -> list[np.ndarray]:
    return [t.detach().numpy().astype(np.float64) for t in tensors]


def of_linear(*layers: Any) -> NumpyNet:
    """The same network in numpy."""
    return NumpyNet([w.T for w in own(*(x.weight for x in layers))], own(*(x.bias for x in layers)))


def same_parameters(found: NumpyNet, expected: NumpyNet) -> None:
    for mine, theirs in zip(found.parameters, expected.parameters, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-9)
