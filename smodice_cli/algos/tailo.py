"""TAILO (Yan et al., 2023): cloning under the future of a discriminator along each trajectory, without a V.

    weights        w_t = sum_k gamma^k exp(1.25 R(s_{t+k})), gamma 0.998, the last state lasting forever      `segments`
    discriminator  first against all data, of which a fifth may be the expert's (positive-unlabelled); then anew against
                   the four fifths of the trajectories that the first found least like it, the safe negatives

As published but for the steps (D52): here a fifth of 1,250, then four fifths, which are as many as smodice's.
"""

from __future__ import annotations

from smodice_cli.algos.smodice import SMODICE


class TAILO(SMODICE):
    """The value-free weights on a discriminator with safe negatives."""

    defaults = {
        "disc": {"prior": 0.2, "safe": 0.8, "steps": 1250},
        "value": {"estimator": "returns", "ceiling": 1.0, "gamma": 0.998, "alpha": 1 / 1.25},
    }
