"""The losses of SMODICE (Ma et al., ICML 2022) as pure functions: tensors in, (loss, info) out.

    discriminator   R(s) = log d^E(s)/d^O(s)                                             Eq. 9
    value           min_V (1-gamma) E_mu0[V] + E_dO[f*(R + gamma V' - V)]                 Eq. 14
    weights         xi = f*'(R + gamma V' - V)                                            Eq. 15
    policy          min_pi -E_dO[xi log pi(a|s)] = -E_d*[log pi(a|s)]                     Eq. 16

`smodice` shows how they make the algorithm.
"""

from __future__ import annotations

import math

from smodice_cli.algos import nets
from smodice_cli.algos.divergences import DIVERGENCES
from smodice_cli.lazy import Tensor, functional, torch

ACTION_MARGIN = 1e-6  # actions are kept this far inside (-1, 1) before atanh
Info = dict[str, Tensor]


def discriminator_loss(logits_expert: Tensor, logits_offline: Tensor, prior: float = 0.0) -> tuple[Tensor, Info]:
    """Cross-entropy with expert = 1, offline = 0, so that the logit is log d^E/d^O (Eq. 9; D1).

    With a prior p > 0 the offline states count as unlabelled, a share p of them expert-like: the non-negative risk
    p E_E[l+] + max(0, E_O[l-] - p E_E[l-]) of Kiryo et al. (2017).
    """
    if prior:
        negative = functional.softplus(logits_offline).mean() - prior * functional.softplus(logits_expert).mean()
        loss = prior * functional.softplus(-logits_expert).mean() + negative.clamp(min=0)
    else:
        loss = functional.softplus(-logits_expert).mean() + functional.softplus(logits_offline).mean()
    return loss, {"reward_expert": logits_expert.mean(), "reward_offline": logits_offline.mean()}


def wasserstein_loss(phi_expert: Tensor, phi_offline: Tensor) -> tuple[Tensor, Info]:
    """SAIL's E_O[phi] - E_E[phi]: minus the Wasserstein distance where the gradient penalty keeps phi 1-Lipschitz."""
    expert, offline = phi_expert.mean(), phi_offline.mean()
    return offline - expert, {"reward_expert": expert, "reward_offline": offline}


def gradient_penalty(discriminator: nets.Discriminator, expert: Tensor, offline: Tensor, mix: Tensor) -> Tensor:
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

    With a normaliser nu (D6) the second term is alpha (nu + E[f*(e/alpha - nu)]).
    """
    dual = alpha * DIVERGENCES[f].mean_conjugate(residual / alpha, cap, normaliser)
    initial = initial_value.mean()
    return (1 - gamma) * initial + dual, {"v0": initial, "residual": residual.mean()}


def importance_weights(
    f: str, residual: Tensor, alpha: float = 1.0, cap: float = math.inf, normaliser: float | None = None
) -> Tensor:
    """xi = f*'(e/alpha - nu) of every row of the data set (Eq. 15); for plain KL the softmax, which has mean 1."""
    return DIVERGENCES[f].weights(residual / alpha, cap, normaliser)


def log_prob(mean: Tensor, log_std: Tensor, unit_actions: Tensor) -> Tensor:
    """log pi(a|s) of actions in [-1, 1]: Gaussian density of atanh(a) minus the log-derivative of tanh."""
    inside = unit_actions.clamp(-1 + ACTION_MARGIN, 1 - ACTION_MARGIN)
    z = (torch.atanh(inside) - mean) / log_std.exp()
    gaussian = -0.5 * z.square() - log_std - 0.5 * math.log(2 * math.pi)
    return (gaussian - torch.log1p(-inside.square())).sum(-1)


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


def average(target: Tensor, source: Tensor, part: Tensor | float) -> None:
    """Exponential moving average of the (flat) weights: target <- (1 - part) target + part source (D8)."""
    target.lerp_(source, part)
