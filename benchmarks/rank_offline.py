"""How well the score on recordings ranks policies by their true return: Spearman's correlation over runs that exist.

    python benchmarks/rank_offline.py runs/hopper runs/pointmass-4direction [--json]

For every policy of these runs, and every snapshot of it that eval scored, of every method and seed, the score that it
would get without a simulator is computed on the run's own data and compared with its return. The error should fall as
the return rises: -1 is a perfect ranking, 0 none at all.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from smodice_cli import artifacts
from smodice_cli.algos.acting import SNAPSHOT_STEPS
from smodice_cli.errors import SmodiceError
from smodice_cli.stages import offline_score
from smodice_cli.statistics import ranks


def scores(policy: Path) -> list[tuple[float, float]]:
    """The error on recordings and the normalized return of a policy and of its snapshots."""
    payload = artifacts.read_payload(policy.with_name("eval.json"))
    found = offline_score.inputs(artifacts.load(policy, "policy"))
    actors = [(found["policy"], payload["score"]["normalized"])]
    if curve := payload.get("curve"):
        stacked = artifacts.follow(found["policy"], "snapshots", "snapshots")
        for index in range(len(stacked.arrays[SNAPSHOT_STEPS]) - 1):  # the last is the policy itself
            arrays = {name: tensor[index] for name, tensor in stacked.arrays.items() if name != SNAPSHOT_STEPS}
            actors.append((replace(found["policy"], arrays=arrays), curve[index]["normalized"]))
    errors = [offline_score.score({**found, "policy": one}, 0, draws=1)["score"]["action_error"] for one, _ in actors]
    return list(zip(errors, [true for _, true in actors], strict=True))


def spearman(pairs: list[tuple[float, float]]) -> float | None:
    """Rank correlation; None where one side is the same for all."""
    a, b = (ranks(np.array(side)) for side in zip(*pairs, strict=True))
    a, b = a - a.mean(), b - b.mean()
    spread = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / spread if spread else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = {}
    for run in options.runs:
        pairs: list[tuple[float, float]] = []
        for policy in sorted(run.rglob("policy.safetensors")):
            try:
                pairs += scores(policy)
            except (SmodiceError, OSError, KeyError) as error:
                print(f"{policy}: left out ({error})")
        if len(pairs) > 1:
            results[str(run)] = {"policies": len(pairs), "spearman": spearman(pairs), "pairs": pairs}
    if options.json:
        print(json.dumps(results, indent=2))
        return
    for name, result in results.items():
        print(f"{name}: {result['policies']} policies, rank correlation of error and return {result['spearman']}")


if __name__ == "__main__":
    main()
