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

from smodice_cli.algos.divergences import DIVERGENCES
from smodice_cli.algos.nets import Discriminator, log_prob

BLOCK = 1 << 16  # rows at a time in sums over the whole data set
Info = dict[str, Tensor]


def discriminator_loss(logits_expert: Tensor, logits_offline: Tensor, prior: float = 0.0) -> tuple[Tensor, Info]:
    """Cross-entropy with expert = 1, offline = 0, so that the logit is log d^E/d^O (Eq. 9; D1).

    With a prior p > 0 the offline states count as unlabelled, a share p of them expert-like: the non-negative risk
    p E_E[l+] + max(0, E_O[l-] - p E_E[l-]) of Kiryo et al. (2017).
    """
    if prior:
        negative = F.softplus(logits_offline).mean() - prior * F.softplus(logits_expert).mean()
        loss = prior * F.softplus(-logits_expert).mean() + negative.clamp(min=0)
    else:
        loss = F.softplus(-logits_expert).mean() + F.softplus(logits_offline).mean()
    return loss, {"reward_expert": logits_expert.mean(), "reward_offline": logits_offline.mean()}


def gradient_penalty(discriminator: Discriminator, expert: Tensor, offline: Tensor, mix: Tensor) -> Tensor:
    """(|grad_s logit| - 1)^2 on mixtures of expert and offline states, in standardised coordinates (D2)."""
    states = discriminator.normaliser(mix * expert + (1 - mix) * offline).requires_grad_()
    logits = discriminator.body(states)
    (gradient,) = torch.autograd.grad(logits.sum(), states, create_graph=True)
    return (gradient.norm(dim=-1) - 1).square().mean()


def bellman_residual(reward: Tensor, value: Tensor, next_value: Tensor, discount: Tensor | float) -> Tensor:
    """e = R(s) + gamma V(s') - V(s); for a segment, R and gamma are those of `Segments`."""
    return reward + discount * next_value - value


def value_loss(
    f: str,
    residual: Tensor,
    initial_value: Tensor,
    gamma: float,
    alpha: float = 1.0,
    cap: float = math.inf,
    normaliser: Tensor | None = None,
) -> tuple[Tensor, Info]:
    """The dual objective (Eq. 14) with regulariser alpha D_f: (1-gamma) E[V(s_0)] + E[alpha f*(e/alpha)].

    With a normaliser nu (the multiplier of E[xi] = 1, redundant at the optimum but quick to learn, D6) the second term
    is alpha (nu + E[f*(e/alpha - nu)]). For KL without a cap its minimum over nu is the log-mean-exp of the appendix.
    """
    y = residual / alpha
    if normaliser is not None:
        dual = alpha * (normaliser + DIVERGENCES[f].conjugate(y - normaliser, cap).mean())
    elif f == "kl" and math.isinf(cap):
        dual = alpha * (torch.logsumexp(y, 0) - math.log(len(y)))
    else:
        dual = alpha * DIVERGENCES[f].conjugate(y, cap).mean()
    initial = initial_value.mean()
    return (1 - gamma) * initial + dual, {"v0": initial, "residual": residual.mean()}


def importance_weights(
    f: str, residual: Tensor, alpha: float = 1.0, cap: float = math.inf, normaliser: float | None = None
) -> Tensor:
    """xi = f*'(e/alpha - nu) of every row of the data set (Eq. 15); for plain KL the softmax, which has mean 1."""
    y = residual / alpha
    if f == "kl" and normaliser is None and math.isinf(cap):
        return (y - torch.logsumexp(y, 0) + math.log(len(y))).exp()
    return DIVERGENCES[f].weight(y - (normaliser or 0.0), cap).clamp(min=0)


def solve_normaliser(f: str, residual: Tensor, q: Tensor, alpha: float, cap: float = math.inf) -> float:
    """The nu with E_q[f*'(e/alpha - nu)] = 1: the exact minimiser of the dual over nu at a fixed V, by bisection.

    E[xi] falls from cap to 0 as nu grows, so the root is bracketed by where the largest weight is 1 and where even the
    smallest residual has weight 1.
    """
    counts = q > 0
    y, q = residual[counts] / alpha, q[counts]
    low, high = float(y.min()), float(y.max())
    parts = list(zip(y.split(BLOCK), q.split(BLOCK), strict=True))
    for _ in range(60):
        middle = 0.5 * (low + high)
        if sum(float((q * DIVERGENCES[f].weight(y - middle, cap)).sum()) for y, q in parts) > 1:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


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


def average(target: Tensor, source: Tensor, decay: float) -> None:
    """Exponential moving average of the (flat) weights: target <- decay target + (1 - decay) source (D8)."""
    target.lerp_(source, 1 - decay)
