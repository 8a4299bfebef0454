"""The algorithms of the paper's comparison: what each starts from and which settings define it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Algorithm = Literal["smodice", "bc", "bc-expert-only", "td3bc", "oril", "sail", "rce", "demodice", "demodice-sd"]

WEIGHTED = ("smodice", "demodice", "demodice-sd")  # cloning under the weights of train-value
TRAJECTORIES = (*WEIGHTED, "bc")  # cloning of the offline trajectories
CLONING = (*TRAJECTORIES, "bc-expert-only")
TD3 = ("td3bc", "oril", "sail", "rce")

# DemoDICE (Kim et al., 2022): the KL dual of single transitions with strength 1 + alpha, alpha = 0.05, and none of what
# we add to the dual (D6, D7, D9, D10, D13). V = 0 after a terminal row is the SMODICE authors' (D33).
_KIM: dict[str, Any] = {
    "estimator": "dual",
    "f": "kl",
    "alpha": 1.05,
    "cap": 0.0,
    "normaliser": False,
    "n_step": 1,
    "sampling": "uniform",
    "terminal": "zero",
    "timeout": "bootstrap",
    "schedule": "constant",
    "scale": 1.0,
    "holdout": 0.0,
    "patience": 0,
}
_USUAL_DISC = {"inputs": "state", "loss": "cross-entropy"}
_TD3: dict[str, dict[str, Any]] = {"policy": {"lr": 3e-4}}  # the paper's table of TD3+BC


@dataclass(frozen=True)
class Method:
    """One algorithm: the artifact train-policy starts from, and the settings that define it."""

    needs: Literal["data", "disc", "value"]
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    expert_actions: bool = False

    @property
    def discriminator(self) -> dict[str, str]:
        """The kind of discriminator it takes."""
        return {name: self.settings.get("disc", {}).get(name, usual) for name, usual in _USUAL_DISC.items()}

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages between the dataset and the policy."""
        return {"data": (), "disc": ("disc",), "value": ("disc", "value")}[self.needs]


METHODS: dict[str, Method] = {
    "smodice": Method("value"),
    "bc": Method("data"),
    "bc-expert-only": Method("data", expert_actions=True),
    "td3bc": Method("data", _TD3),
    "oril": Method("disc", _TD3),
    "sail": Method("disc", {"disc": {"loss": "wasserstein", "gradient_penalty": 10.0}, **_TD3}),
    "rce": Method("data", _TD3),
    "demodice": Method("value", {"disc": {"inputs": "state-action"}, "value": _KIM}, expert_actions=True),
    "demodice-sd": Method("value", {"value": _KIM}),
}
