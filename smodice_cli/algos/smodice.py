"""SMODICE (Ma et al., ICML 2022), Algorithm 1: three disjoint supervised problems, as pure functions.

    discriminator   R(s) = log d^E(s)/d^O(s)                                             Eq. 9
    value           min_V (1-gamma) E_mu0[V] + E_dO[f*(R + gamma V' - V)]                 Eq. 14
    weights         xi = f*'(R + gamma V' - V)                                            Eq. 15
    policy          min_pi -E_dO[xi log pi(a|s)] = -E_d*[log pi(a|s)]                     Eq. 16

Tensors in, (loss, info) out: no files, no environments, no sampling.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from smodice_cli.algos.divergences import DIVERGENCES, Divergence
from smodice_cli.algos.nets import Discriminator, log_prob

Info = dict[str, Tensor]


def discriminator_loss(logits_expert: Tensor, logits_offline: Tensor) -> tuple[Tensor, Info]:
    """Cross-entropy with expert = 1, offline = 0, so that the logit is log d^E/d^O (Eq. 9; D1)."""
    loss = F.softplus(-logits_expert).mean() + F.softplus(logits_offline).mean()
    return loss, {"reward_expert": logits_expert.mean(), "reward_offline": logits_offline.mean()}


def gradient_penalty(discriminator: Discriminator, expert: Tensor, offline: Tensor, mix: Tensor) -> Tensor:
    """(|grad_s logit| - 1)^2 on mixtures of expert and offline states, in standardised coordinates (D2)."""
    states = discriminator.normaliser(mix * expert + (1 - mix) * offline).requires_grad_()
    logits = discriminator.body(states)
    (gradient,) = torch.autograd.grad(logits.sum(), states, create_graph=True)
    return (gradient.norm(dim=-1) - 1).square().mean()


def bellman_residual(reward: Tensor, value: Tensor, next_value: Tensor, gamma: float) -> Tensor:
    """e = R(s) + gamma V(s') - V(s)."""
    return reward + gamma * next_value - value


def value_loss(
    f: str, residual: Tensor, initial_value: Tensor, gamma: float, alpha: float = 1.0
) -> tuple[Tensor, Info]:
    """The dual objective (Eq. 14) with regulariser alpha D_f: alpha f*(e/alpha); KL by log-mean-exp (App. C)."""
    if f == "kl":
        dual = alpha * (torch.logsumexp(residual / alpha, 0) - math.log(len(residual)))
    else:
        dual = alpha * DIVERGENCES[f].conjugate(residual / alpha).mean()
    initial = initial_value.mean()
    return (1 - gamma) * initial + dual, {"v0": initial, "residual": residual.mean()}


def log_importance_weights(f: str, residual: Tensor, alpha: float = 1.0) -> Tensor:
    """log xi = log f*'(e/alpha) over the whole data set (Eq. 15), scaled to mean 1; -inf where xi = 0.

    At the optimum E_dO[xi] = 1 already; for KL the scaling is the softmax of the paper's appendix.
    """
    divergence: Divergence = DIVERGENCES[f]
    scaled = residual / alpha
    logs = scaled if f == "kl" else divergence.weight(scaled).clamp(min=0).log()
    return logs - (torch.logsumexp(logs, 0) - math.log(len(logs)))


def policy_nll(mean: Tensor, log_std: Tensor, unit_actions: Tensor, weights: Tensor) -> Tensor:
    """-E[w log pi(a|s)] (Eq. 16)."""
    return -(weights * log_prob(mean, log_std, unit_actions)).mean()


def policy_mse(mean: Tensor, unit_actions: Tensor, weights: Tensor) -> Tensor:
    """E[w |tanh(mean) - a|^2]: the same regression with a fixed spread (D8)."""
    return (weights * (torch.tanh(mean) - unit_actions).square().sum(-1)).mean()


def policy_entropy(mean: Tensor, log_std: Tensor, noise: Tensor) -> Tensor:
    """A one-sample estimate of the entropy of pi(.|s), differentiable through the sample."""
    unit = torch.tanh(mean + log_std.exp() * noise)
    return -log_prob(mean, log_std, unit).mean()
