"""tabular: SMODICE solved exactly on a gridworld, a text map or transition counts."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from smodice_cli.algos.divergences import DIVERGENCES
from smodice_cli.artifacts import Link
from smodice_cli.config import Config as BaseConfig
from smodice_cli.config import build, setting
from smodice_cli.engine import Context, Options, Output, Result, Stage, make
from smodice_cli.errors import ConfigError, InputError, UsageError
from smodice_cli.files import check_regular, file_digest

PAPER_TASKS = ("mismatched", "example")
HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"


@dataclass(frozen=True)
class Config(BaseConfig):
    """The finite problem and the variant of the dual; defaults are the paper's gridworlds."""

    task: str = setting("example", "what is solved", choices=lambda: (*PAPER_TASKS, "map", "counts"))
    size: int = setting(9, "cells along a side of the paper's torus", flag=True, ge=3)
    gamma: float = setting(0.99, "discount", flag=True, gt=0, lt=1)
    episodes: int = setting(10_000, "episodes of the random policy", flag=True, gt=0)
    horizon: int = setting(50, "steps in an episode", flag=True, gt=0)
    noise: float = setting(0.1, "probability that a move is uniform over the four", flag=True, ge=0, le=1)
    starts: str = setting("auto", "where episodes of data begin", choices=("auto", "start", "anywhere"), flag=True)
    expert: str = setting(
        "goal", "on a map, the expert: success cells, or a diagonal mover", choices=("goal", "diagonal"), flag=True
    )
    torus: bool = setting(False, "on a map: moves wrap around (the paper's grids do)", flag=True)
    f: str = setting("chi2", "the divergence D_f(d || d^O)", choices=lambda: DIVERGENCES, flag=True)
    alpha: float = setting(1.0, "strength of the regulariser per step; 1 is the paper", flag=True, gt=0)
    cap: float = setting(0.0, "bound on the ratio xi; 0 means none", flag=True, ge=0)
    smoothing: float = setting(1e-4, "added to both occupancies in the log ratio", flag=True, gt=0)

    def check(self) -> None:
        if 0 < self.cap <= 1:
            raise ConfigError(f"cap must be above 1 (the mean ratio is one), or 0 for none, got {self.cap}")


OF_GRIDS = ("size", "episodes", "horizon", "noise", "starts", "expert", "torus")


class Tabular(Stage):
    """A task's name, a map or counts -> an HDF5 of V, weights, policy and occupancies."""

    name, kind, file = "tabular", "tabular", "tabular.h5"
    Config = Config
    in_run = False

    def prepare(self, context: Context, start: Path | None) -> Context:
        from smodice_cli.views import tabular as view
        from smodice_cli.views.render import output

        picture = context.out.with_suffix(".png")
        if picture == context.out:
            hint = "name an HDF5 file, e.g. runs/tabular/x.h5"
            raise UsageError(f"--out {context.out}: that is where the picture goes", hint)
        output.check(picture, (".png",), context.options.force, view.SOFTWARE)
        if start is None:
            return context
        from smodice_cli.stages import finite

        finite.read_source(start, context.config)  # a bad file is refused before anything is locked or written
        place = os.path.relpath(start.resolve(), context.out.parent.resolve())
        return replace(context, links={"source": Link(place, file_digest(start))}, opened=start)

    def work(self, context: Context) -> list[Output]:
        from smodice_cli.stages import finite

        return [Output(*finite.solve(context.config, context.seed, context.opened))]


def tabular(source: str, out: Path | None, given: dict[str, Any], seed: int, options: Options) -> Result:
    """Solve `mismatched`, `example`, a map file or an HDF5 file of counts; `given` holds the settings that were set.

    Draws the picture where it was solved anew or has none.
    """
    from smodice_cli.views import tabular as view

    path = None if source in PAPER_TASKS else Path(source)
    config = configure(source, path, given)
    out = out or Path("runs") / Tabular.name / f"{path.stem if path else source}.h5"
    result = make(Tabular(), path, out, config, seed, options)
    if result.header and (result.status == "done" or not out.with_suffix(".png").exists()):
        view.draw(out)
    return result


def configure(source: str, path: Path | None, given: dict[str, Any]) -> Config:
    """The config of a task or file; settings that cannot apply are refused."""
    if path is None:
        task, fixed = source, {"expert": "diagonal" if source == "mismatched" else "goal", "torus": True}
        unusable: tuple[str, ...] = ("expert", "torus")
    else:
        task, fixed = ("counts" if _is_hdf5(path) else "map"), {}
        unusable = OF_GRIDS if task == "counts" else ("size",)
    for name in unusable:
        if name in given:
            raise UsageError(f"--{name} does not apply to {source}: it is fixed there")
    return build(Config, Tabular.name, {"task": task, **given, **fixed})


def _is_hdf5(path: Path) -> bool:
    hint = "give mismatched, example, a map file or an HDF5 file of counts"
    if not path.exists():
        raise InputError(f"{path} does not exist", hint)
    if path.is_dir():
        raise InputError(f"{path} is a folder", hint)
    check_regular(path)
    with open(path, "rb") as handle:
        return handle.read(len(HDF5_MAGIC)) == HDF5_MAGIC
