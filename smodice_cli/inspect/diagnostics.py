"""What the weights look like, in numbers (numpy only)."""

from __future__ import annotations

from typing import Any

import numpy as np

QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)


def weight_health(w: np.ndarray, source: np.ndarray, labels: list[str]) -> dict[str, Any]:
    """Size, effective sample size (sum w)^2 / sum w^2, concentration, zeros, quantiles and the mean per source."""
    w = np.asarray(w, np.float64)
    total = w.sum()
    ess = float(total**2 / np.square(w).sum())
    by_source = {}
    for index, label in enumerate(labels):
        mine = source == index
        if mine.any():
            by_source[label] = {
                "rows": int(mine.sum()),
                "mean": float(w[mine].mean()),
                "share": float(w[mine].sum() / total),
            }
    return {
        "rows": len(w),
        "effective_sample_size": ess,
        "effective_share": ess / len(w),
        "largest_share": float(w.max() / total),
        "zero_share": float((w == 0).mean()),
        "mean": float(w.mean()),
        "quantiles": {str(q): float(np.quantile(w, q)) for q in QUANTILES},
        "by_source": by_source,
    }
