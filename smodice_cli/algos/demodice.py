"""DemoDICE (Kim et al., 2022) and the SMODICE authors' variant of it with the state discriminator (DemoDICE+SD).

The KL dual of single transitions with strength 1 + alpha, alpha = 0.05, and none of what we add to the dual (D6, D7,
D9, D10, D13, D53). V = 0 after a terminal row is the SMODICE authors' (D33).
"""

from __future__ import annotations

from smodice_cli.algos.smodice import SMODICE
from smodice_cli.config import Settings

DUAL: Settings = {
    "value": {
        "estimator": "dual",
        "ceiling": 1.0,
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
}


class DemoDICE(SMODICE):
    """The dual of Kim et al. on a discriminator of states with actions."""

    defaults = DUAL | {"disc": {"inputs": "state-action"}}
    expert_actions = True


class StateDemoDICE(SMODICE):
    """The same dual on SMODICE's discriminator of states."""

    defaults = DUAL
