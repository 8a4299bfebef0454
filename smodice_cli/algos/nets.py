"""The networks of the paper (two hidden layers of 256); each carries its normaliser, so it maps raw states."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from smodice_cli.algos.products import activated, product

MEAN_CLIP = 7.24  # paper, Table "SMODICE Hyperparameters"; atanh(1 - 1e-6)
LOG_STD_CLIP = (-5.0, 2.0)  # same table
Network = TypeVar("Network", bound=nn.Module)


def initialise(module: Network, generator: torch.Generator) -> Network:
    """Torch's own default for linear layers, U(-1/sqrt(fan_in), 1/sqrt(fan_in)), drawn from an explicit generator."""
    for layer in module.modules():
        if isinstance(layer, (nn.Linear, Stacked)):
            bound = 1.0 / math.sqrt(layer.weight.shape[-1])
            with torch.no_grad():
                layer.weight.uniform_(-bound, bound, generator=generator)
                layer.bias.uniform_(-bound, bound, generator=generator)
    return module


class Normaliser(nn.Module):
    """Standardises states by a mean and a standard deviation."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean.clone().float())
        self.register_buffer("std", std.clone().float())

    def forward(self, states: Tensor) -> Tensor:
        return (states - self.mean) / self.std


class Stacked(nn.Module):
    """Linear layers of several networks of one shape, each at its index."""

    def __init__(self, members: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(members, outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(members, outputs))


def _layers(width: int, hidden: int, activation: type[nn.Module]) -> list[nn.Module]:
    return [nn.Linear(width, hidden), activation(), nn.Linear(hidden, hidden), activation()]


class _ReluNetwork(torch.autograd.Function):
    """Two ReLU layers and a linear one as a single node: in-place activations, and the products in their quick layout.

    Automatic differentiation would compute the first layer's gradient as d^T x, which takes several times as long as
    (x^T d)^T where the state is narrow.
    """

    activation = "relu"

    @staticmethod
    def through(gradient: Tensor, activation: Tensor) -> Tensor:
        """The gradient where the unit was on, in place."""
        return torch.ops.aten.threshold_backward.grad_input(gradient, activation, 0, grad_input=gradient)

    @classmethod
    def forward(
        cls, ctx: Any, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, w3: Tensor, b3: Tensor
    ) -> Tensor:
        h1 = activated(x, w1, b1, cls.activation)
        h2 = activated(h1, w2, b2, cls.activation)
        ctx.save_for_backward(x, w1, h1, w2, h2, w3)
        return torch.addmm(b3, h2, w3.T)

    @classmethod
    @once_differentiable
    def backward(cls, ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, w1, h1, w2, h2, w3 = ctx.saved_tensors
        d2 = cls.through(gradient @ w3, h2)
        d1 = cls.through(product(d2, w2), h1)
        first, second, third = product(x.T, d1).T, product(d2.T, h1), gradient.T @ h2
        inputs = product(d1, w1) if ctx.needs_input_grad[0] else None
        return inputs, first, d1.sum(0), second, d2.sum(0), third, gradient.sum(0)


class _TanhNetwork(_ReluNetwork):
    """The same with tanh."""

    activation = "tanh"

    @staticmethod
    def through(gradient: Tensor, activation: Tensor) -> Tensor:
        return torch.ops.aten.tanh_backward.grad_input(gradient, activation, grad_input=gradient)


class Discriminator(nn.Module):
    """c(s) on a chosen subset of the state's dimensions; the output is the logit, which is R(s) = log d^E/d^O."""

    dims: Tensor

    def __init__(self, mean: Tensor, std: Tensor, dims: Sequence[int], hidden: int) -> None:
        super().__init__()
        self.register_buffer("dims", torch.tensor(list(dims), dtype=torch.int64))
        self.normaliser = Normaliser(mean[self.dims], std[self.dims])
        self.body = nn.Sequential(*_layers(len(dims), hidden, nn.Tanh), nn.Linear(hidden, 1))
        self.weights = tuple(self.body.parameters())

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> Discriminator:
        """The discriminator that an artifact holds, beside what it said of the data."""
        hidden, width = arrays["body.0.weight"].shape
        found = cls(torch.zeros(width), torch.ones(width), range(width), hidden)
        found.load_state_dict({name: torch.from_numpy(arrays[name]) for name in found.state_dict()})
        return found

    def select(self, states: Tensor) -> Tensor:
        """The shared dimensions of whole states."""
        return states[..., self.dims]

    def forward(self, selected: Tensor) -> Tensor:
        return _TanhNetwork.apply(self.normaliser(selected), *self.weights).squeeze(-1)


class ValueFunction(nn.Module):
    """V(s) = scale x network: a larger scale lets V move by 1/(1-gamma) without large weights (D9)."""

    scale: Tensor

    def __init__(self, mean: Tensor, std: Tensor, hidden: int, scale: float) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(scale))
        self.normaliser = Normaliser(mean, std)
        self.body = nn.Sequential(*_layers(len(mean), hidden, nn.ReLU), nn.Linear(hidden, 1))
        self.weights = tuple(self.body.parameters())

    def forward(self, states: Tensor) -> Tensor:
        return self.scale * _ReluNetwork.apply(self.normaliser(states), *self.weights).squeeze(-1)


class TanhGaussianPolicy(nn.Module):
    """pi(a|s): a Gaussian squashed by tanh, with separate heads for the mean and the log standard deviation.

    With several `members` (D57) every weight has one axis more, a network at each index, and the policy is their mean
    before the squashing. `apart`, each member answers for a share of the states of its own, which is how they learn.
    """

    action_low: Tensor
    action_high: Tensor

    def __init__(self, mean: Tensor, std: Tensor, low: Tensor, high: Tensor, hidden: int, members: int = 1) -> None:
        super().__init__()
        self.members = members
        self.register_buffer("action_low", low.clone().float())
        self.register_buffer("action_high", high.clone().float())
        self.normaliser = Normaliser(mean, std)
        linear = partial(Stacked, members) if members > 1 else nn.Linear
        self.body = nn.Sequential(linear(len(mean), hidden), nn.ReLU(), linear(hidden, hidden), nn.ReLU())
        self.mean = linear(hidden, len(low))
        self.log_std = linear(hidden, len(low))
        self.weights = tuple(self.body.parameters())

    def forward(self, states: Tensor, apart: bool = False) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation before the squashing, clipped as in the paper."""
        heads = zip(self.mean.parameters(), self.log_std.parameters(), strict=True)
        axis = 1 if self.members > 1 else 0
        mean, log_std = self._heads(states, apart, *(torch.cat(pair, axis) for pair in heads)).chunk(2, dim=-1)
        return mean.clamp(-MEAN_CLIP, MEAN_CLIP), log_std.clamp(*LOG_STD_CLIP)

    def centre(self, states: Tensor, apart: bool = False) -> Tensor:
        """The mean alone, which is all that squared error needs."""
        return self._heads(states, apart, self.mean.weight, self.mean.bias).clamp(-MEAN_CLIP, MEAN_CLIP)

    def _heads(self, states: Tensor, apart: bool, weight: Tensor, bias: Tensor) -> Tensor:
        x, weights = self.normaliser(states), (*self.weights, weight, bias)
        if self.members == 1:
            return _ReluNetwork.apply(x, *weights)
        shares = x.tensor_split(self.members) if apart else [x] * self.members
        networks = zip(shares, *(stacked.unbind() for stacked in weights), strict=True)
        found = [_ReluNetwork.apply(*network) for network in networks]
        return torch.cat(found) if apart else torch.stack(found).mean(0)

    @torch.no_grad()
    def narrow(self) -> None:
        """The least spread for every state: that of a policy whose loss has nothing to say about it."""
        self.log_std.weight.zero_()
        self.log_std.bias.fill_(LOG_STD_CLIP[0])

    def mode(self, states: Tensor) -> Tensor:
        """tanh(mean): the deterministic action in [-1, 1]."""
        return torch.tanh(self.centre(states))

    def unit(self, actions: Tensor) -> Tensor:
        """Environment actions mapped to [-1, 1]."""
        return 2 * (actions - self.action_low) / (self.action_high - self.action_low) - 1


class TwinCritic(nn.Module):
    """Two independent critics Q_i(s, a) of two hidden ReLU layers, as one batched network."""

    def __init__(self, mean: Tensor, std: Tensor, actions: int, hidden: int) -> None:
        super().__init__()
        self.normaliser = Normaliser(mean, std)
        sizes = list(pairwise([len(mean) + actions, hidden, hidden, 1]))
        self.weights = nn.ParameterList(torch.zeros(2, inputs, outputs) for inputs, outputs in sizes)
        self.biases = nn.ParameterList(torch.zeros(2, 1, outputs) for _, outputs in sizes)

    def initialise(self, generator: torch.Generator) -> TwinCritic:
        """As `initialise`, each critic with its own draw."""
        for weight, bias in zip(self.weights, self.biases, strict=True):
            bound = 1.0 / math.sqrt(weight.shape[1])
            for parameter in (weight, bias):
                nn.init.uniform_(parameter, -bound, bound, generator=generator)
        return self

    def _inputs(self, states: Tensor, unit_actions: Tensor) -> Tensor:
        return torch.cat([self.normaliser(states), unit_actions], dim=-1)

    def forward(self, states: Tensor, unit_actions: Tensor) -> Tensor:
        """Both critics, (2, batch)."""
        x = self._inputs(states, unit_actions).expand(2, -1, -1)
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x.relu() if layer else x, weight)
        return x.squeeze(-1)

    def first(self, states: Tensor, unit_actions: Tensor) -> Tensor:
        """Q_1 for the policy's loss: the gradient reaches the actions, never the critic."""
        x = self._inputs(states, unit_actions)
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.addmm(bias[0].detach(), x.relu() if layer else x, weight[0].detach())
        return x.squeeze(-1)


class InverseModel(nn.Module):
    """g(s, s'): the action in [-1, 1] that leads from s to s'."""

    def __init__(self, mean: Tensor, std: Tensor, actions: int, hidden: int) -> None:
        super().__init__()
        self.normaliser = Normaliser(mean, std)
        self.body = nn.Sequential(*_layers(2 * len(mean), hidden, nn.ReLU), nn.Linear(hidden, actions), nn.Tanh())

    def forward(self, states: Tensor, next_states: Tensor) -> Tensor:
        before = self.normaliser(states)
        # Neighbouring states differ by little of their spread: the difference is what the action shows in.
        return self.body(torch.cat([before, self.normaliser(next_states) - before], dim=-1))
