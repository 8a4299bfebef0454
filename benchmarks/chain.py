"""Where the time of a whole run goes, from the start of the process to the last fsync.

    python benchmarks/chain.py [pointmass-4direction] [--set KEY=VALUE]

Runs `smodice run RECIPE` into a folder that goes again, with a clock around what it is made of. A part's time is its
own, without the parts inside it, so that all of them add up to the whole; "wall" contains waiting for other processes.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import pkgutil
import resource
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

PARTS = {  # what it is called, and the functions that do it
    "simulating the data": ["smodice_cli.stages.build_dataset:BuildDataset.work"],
    "discriminator: preparation": ["smodice_cli.stages.train_disc:TrainDisc.work"],
    "discriminator: steps": ["smodice_cli.stages.train_disc:fit"],
    "discriminator: R of every row": ["smodice_cli.algos.discriminator:DiscriminatorLearner.finish"],
    "value: preparation": ["smodice_cli.stages.train_value:TrainValue.work", "smodice_cli.algos.dual:set_up"],
    "value: steps": ["smodice_cli.stages.train_value:fit"],
    "value: V of every row": ["smodice_cli.algos.dual:values"],
    "value: weights of every row": ["smodice_cli.algos.dual:ratios", "smodice_cli.algos.dual:row_weights"],
    "value: audit": ["smodice_cli.views.audit:audit"],
    "policy: preparation": ["smodice_cli.stages.train_policy:TrainPolicy.work"],
    "policy: steps": ["smodice_cli.stages.train_policy:fit"],
    "evaluation": ["smodice_cli.stages.evaluate:Evaluate.work"],
    "held-out figures, log, checkpoints": [
        "smodice_cli.training:_Keeper.write",
        "smodice_cli.training:_Keeper.save",
        "smodice_cli.stages.train_value:BySource.check",
        "smodice_cli.algos.discriminator:DiscriminatorLearner.check",
    ],
    "hashing": ["smodice_cli.artifacts:content_digest"],
    "writing": ["smodice_cli.artifacts:write"],
    "fsync": ["os:fsync"],
    "summary": ["smodice_cli.execution:summarise"],
}
OTHER = "everything else"


class Clock:
    """Own time of each part, on the wall and of the processor."""

    def __init__(self) -> None:
        self.wall: defaultdict[str, float] = defaultdict(float)
        self.processor: defaultdict[str, float] = defaultdict(float)
        self.inside, self.since = [OTHER], (time.perf_counter() - time.process_time(), 0.0)  # when the process began

    def switch(self) -> None:
        """Give the time since the last switch to the part that it was spent in."""
        now = (time.perf_counter(), time.process_time())
        self.wall[self.inside[-1]] += now[0] - self.since[0]
        self.processor[self.inside[-1]] += now[1] - self.since[1]
        self.since = now

    def around(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:
            self.switch()
            self.inside.append(part)
            try:
                return function(*arguments, **named)
            finally:
                self.switch()
                self.inside.pop()

        return timed

    def imports(self, name: str) -> None:
        self.around(f"importing {name}", importlib.import_module)(name)


def main() -> None:
    clock = Clock()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("recipe", nargs="?", default="pointmass-4direction")
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    for name in ("smodice_cli.commands", "numpy", "h5py", "torch"):
        clock.imports(name)
    for part, places in PARTS.items():
        for place in places:
            module, _, path = place.partition(":")
            *owner, name = path.split(".")
            holder = pkgutil.resolve_name(f"{module}:{'.'.join(owner)}") if owner else importlib.import_module(module)
            setattr(holder, name, clock.around(part, getattr(holder, name)))
    from smodice_cli.__main__ import main as smodice

    with tempfile.TemporaryDirectory() as folder:
        settings = [word for setting in options.set for word in ("--set", setting)]
        sys.argv = ["smodice", "run", options.recipe, "--out", f"{folder}/run", "--quiet", *settings]
        try:
            smodice()
        except SystemExit as end:
            if end.code:
                raise
        clock.switch()
    print("| part | wall s | processor s |\n| --- | --- | --- |")
    for part in [part for part in clock.wall if part not in PARTS and part != OTHER] + [*PARTS, OTHER]:
        print(f"| {part} | {clock.wall[part]:.2f} | {clock.processor[part]:.2f} |")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    others = used.ru_utime + used.ru_stime
    print(f"| processes that simulate | | {others:.2f} |")
    print(f"| **all** | **{sum(clock.wall.values()):.1f}** | **{sum(clock.processor.values()) + others:.1f}** |")


if __name__ == "__main__":
    main()
