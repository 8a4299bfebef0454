"""summary.json: the scores of a run folder, derived from the verified artifacts in it, whoever made them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smodice_cli import artifacts, files
from smodice_cli.artifacts import Artifact
from smodice_cli.config import as_dict
from smodice_cli.console import console
from smodice_cli.errors import SmodiceError
from smodice_cli.lazy import np
from smodice_cli.pipeline import Configs, Run
from smodice_cli.stages import DEFAULT, chain, maker
from smodice_cli.views.diagnostics import findings, verdict
from smodice_cli.views.runs import training_seconds

FILE = "summary.json"


@dataclass(frozen=True)
class Score:
    """The score of one method and seed, and the settings of all that led to it."""

    method: str
    seed: int
    score: dict[str, Any]
    key: str
    settings: dict[str, Any]  # by stage, and the digest of the dataset
    steps: int  # of the policy
    seconds: float
    policy: str
    weights: dict[str, Any] | None = None  # those that it was trained on: where, how healthy, and why

    @property
    def figure(self) -> str:
        """What it is compared by: the normalized return or, of recordings without a simulator, the error of actions."""
        return "normalized" if "normalized" in self.score else "action_error"


def summarise(run: Run) -> dict[str, Any]:
    """Scores over seeds with their spread, steps and time of each method; also written to summary.json.

    What is missing of the run's methods and seeds is named, and scores of other settings stand apart. The figures of a
    single method also stand at the top.
    """
    folder, methods, seeds = run.folder, run.methods, run.seeds
    scores = _scores(folder)
    data = artifacts.read_header(folder / maker("dataset").file).digest
    now = [score for score in scores if _is_current(score, methods, data)]
    everyone = sorted({*seeds, *(score.seed for score in now)})
    names = dict.fromkeys([*methods, *(score.method for score in now)])
    rows = [_row(name, [score for score in now if score.method == name], everyone) for name in names]
    result = {"folder": str(folder), "seeds": everyone, **(rows[0] if len(rows) == 1 else {}), "methods": rows}
    result["other_settings"] = [_brief(score) for score in scores if score not in now]
    if scores:
        with files.atomic(folder / FILE) as temporary:
            temporary.write_text(json.dumps(result, indent=2) + "\n")
    else:
        (folder / FILE).unlink(missing_ok=True)
    return result


def _scores(folder: Path) -> list[Score]:
    file = maker("eval").file
    found = []
    for path in sorted([*folder.glob(f"seed*/{file}"), *folder.glob(f"seed*/*/{file}")]):
        home, *method = path.relative_to(folder).parts[:-1]
        if seed := re.fullmatch(r"seed(\d{1,10})", home):
            try:
                found.append(_score(path, method[0] if method else DEFAULT, int(seed[1])))
            except SmodiceError as error:
                console.warn(f"{error.message}: left out of {FILE}")
    return sorted(found, key=lambda score: (score.method, score.seed))


def _score(path: Path, method: str, seed: int) -> Score:
    found = artifacts.load(path, "eval")
    with artifacts.as_expected(found):
        policy = artifacts.linked(path, found.header.inputs["policy"])
        steps = artifacts.read_header(policy).metrics["steps"]
        seconds, score = training_seconds(policy), found.payload()["score"]
        weights = _verdict(policy)
        score = Score(method, seed, score, found.header.key, _settings(found), steps, seconds, str(policy), weights)
        float(score.score[score.figure])
        return score


def _verdict(policy: Path) -> dict[str, Any] | None:
    """How healthy the weights are that a policy was trained on; None where it had none."""
    link = artifacts.read_header(policy).inputs.get("weights")
    if link is None:
        return None
    path = artifacts.linked(policy, link)
    header = artifacts.read_header(path)
    found = findings(header.metrics, header.config)
    return {"path": str(path), "level": verdict(found), "findings": [finding.text for finding in found]}


def _settings(artifact: Artifact) -> dict[str, Any]:
    """The config of every stage on the way to an artifact, each verified, and the digest of the dataset."""
    found: dict[str, Any] = {artifact.header.stage: artifact.header.config}
    for name, link in artifact.header.inputs.items():
        if name == "dataset":
            found[name] = link.digest
        elif name not in ("snapshots", "bc"):  # made with the policy, and what it is compared with
            found |= _settings(artifacts.follow(artifact, name, name))
    return found


def _is_current(score: Score, methods: Mapping[str, Configs], data: str) -> bool:
    """Whether a score is of the folder's dataset and, for a method of this run, of its settings."""
    if score.settings.get("dataset") != data:
        return False
    if score.method not in methods:
        return True
    configs = methods[score.method]
    stages = [stage for stage in chain(configs["policy"].algo) if stage.name in score.settings]
    return all(score.settings[stage.name] == as_dict(configs[stage.section]) for stage in stages)


def _row(method: str, scores: Sequence[Score], seeds: Sequence[int]) -> dict[str, Any]:
    figure = scores[0].figure if scores else "normalized"
    found = np.array([score.score[figure] for score in scores])
    return {
        "method": method,
        f"{figure}_mean": float(found.mean()) if scores else None,
        f"{figure}_std": float(found.std(ddof=1)) if len(scores) > 1 else None,
        **({} if figure == "normalized" else {"policies": [score.policy for score in scores]}),
        "steps": scores[0].steps if scores else None,
        "seconds": float(np.mean([score.seconds for score in scores])) if scores else None,
        "per_seed": {str(score.seed): score.score for score in scores},
        "keys": {str(score.seed): score.key for score in scores},
        "weights": {str(score.seed): score.weights for score in scores if score.weights},
        "missing": [seed for seed in seeds if seed not in [score.seed for score in scores]],
    }


def _brief(score: Score) -> dict[str, Any]:
    return {"method": score.method, "seed": score.seed, "key": score.key, score.figure: score.score[score.figure]}
