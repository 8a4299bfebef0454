"""The stages of the pipeline in their order: each declares itself in its own module.

To add one: a module with a subclass of `engine.Stage`, and a line in the table. It is then a subcommand, a part of
`run` (unless it says otherwise) and known to `status`, `inspect` and `report`.
"""

from __future__ import annotations

from pathlib import Path

from smodice_cli.algos import ALGORITHMS
from smodice_cli.config import Config, as_dict
from smodice_cli.engine import Stage
from smodice_cli.registry import Registry

DEFAULT = "smodice"  # the algorithm whose files lie in a run's own folders

STAGES: Registry[Stage] = Registry(
    "stage",
    {
        "build-dataset": "smodice_cli.stages.build_dataset:BuildDataset",
        "train-disc": "smodice_cli.stages.train_disc:TrainDisc",
        "train-value": "smodice_cli.stages.train_value:TrainValue",
        "train-policy": "smodice_cli.stages.train_policy:TrainPolicy",
        "eval": "smodice_cli.stages.evaluate:Evaluate",
        "select-f": "smodice_cli.stages.select_f:SelectF",
        "tabular": "smodice_cli.stages.tabular:Tabular",
    },
    singletons=True,
)


def sections() -> dict[str, Stage]:
    """The sections of a recipe and whose they are."""
    return {stage.section: stage for stage in STAGES.values() if stage.section}


def maker(kind: str) -> Stage:
    """The stage that makes artifacts of this kind."""
    return next(stage for stage in STAGES.values() if stage.kind == kind or kind in stage.companions)


def chain(algo: str) -> list[Stage]:
    """What an algorithm needs, in order: the way to its policy, and the stages that follow of themselves."""
    found = [maker("policy")]
    while kind := found[0].starts_from(algo):
        found.insert(0, maker(kind))
    order = list(STAGES.values())
    for stage in order[order.index(found[-1]) + 1 :]:
        if stage.in_run and stage.starts_from(algo) in [before.kind for before in found]:
            found.append(stage)
    return found


def has(algo: str, section: str) -> bool:
    """Whether an algorithm has the stage with this section; one that is no part of a run goes with all."""
    stage = sections()[section]
    return not stage.in_run or stage in chain(algo)


def flag_of(kind: str) -> str:
    """The option that hands an artifact of this kind to a later stage."""
    return maker(kind).flag or kind


def home(start: Path, algo: str) -> Path:
    """Where an algorithm's artifacts lie unless another place is named: beside smodice's, in a folder of their own."""
    folder = start.parent
    return folder if algo in (DEFAULT, folder.name) else folder / algo


def owner(stage: Stage, algo: str, config: Config) -> str:
    """Whose folder an artifact of this stage lies in; one that algorithms share is smodice's, unless it is special."""
    if not stage.shared or stage.section in ALGORITHMS[algo].defaults:
        return algo
    special = {name: found.defaults.get(stage.section, {}) for name, found in ALGORITHMS.items()}
    return next((n for n, own in special.items() if own and own.items() <= as_dict(config).items()), DEFAULT)
