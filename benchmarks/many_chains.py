"""The cost of looking: `smodice run` over chains that are all there already, checked and summed up.

    python benchmarks/many_chains.py [--chains 100] [--rows 50000]

The chains are made first, tiny, in this process; then the command itself is timed, as a process.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from smodice_cli import pipeline, recipes
from smodice_cli.console import console
from smodice_cli.engine import Options
from smodice_cli.stages import DEFAULT

ENV = "pointmass-4direction"
SMALL = "steps = 5\nhidden = 8\nbatch = 8\n"
BOUND = 30  # seconds for 100 chains, on an otherwise idle machine: of processor time, which other work does not change


def make(folder: Path, chains: int, rows: int) -> Path:
    """A recipe and all artifacts of its run."""
    recipe = folder / "many.toml"
    data = f'[dataset]\nenv = "{ENV}"\noffline = ["sim:{ENV}#{rows}"]\nexpert = ["sim:{ENV}#success=50"]\n'
    recipe.write_text(
        data + "".join(f"[{name}]\n{SMALL}" for name in ("disc", "value", "policy")) + "[eval]\nepisodes = 1\n"
    )
    configs = recipes.configs(DEFAULT, recipes.for_algorithm(DEFAULT, recipes.read_recipe(recipe).settings, {}))
    run = pipeline.Run(folder / "run", {DEFAULT: configs}, configs, list(range(chains)))
    ready, _ = pipeline.prepare(run, Options(), 1)
    for chain in ready.chains():
        pipeline.run_chain(chain, Options(), 1, tell=False)
    return recipe


def processor_seconds() -> float:
    """What the processes that we started have used so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--chains", type=int, default=100)
    parser.add_argument("--rows", type=int, default=50_000)
    options = parser.parse_args()
    console.quiet = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe = make(folder, options.chains, options.rows)
        command = [sys.executable, "-m", "smodice_cli", "run", str(recipe), "--seeds", f"0-{options.chains - 1}"]
        began, before = time.monotonic(), processor_seconds()
        told = subprocess.run([*command, "--out", str(folder / "run"), "--json"], check=True, capture_output=True)
        seconds, worked = time.monotonic() - began, processor_seconds() - before
        assert len(json.loads(told.stdout)["per_seed"]) == options.chains
        assert not (folder / "run/orders").exists(), "something was ordered"
    cost = f"{worked:.1f} s of processor time, {seconds:.1f} s on the clock"
    print(f"{options.chains} cached chains on {options.rows:,} rows: {cost} (bound for 100: {BOUND} s)")
    if options.chains <= 100 and worked > BOUND:
        sys.exit("slower than the bound")


if __name__ == "__main__":
    main()
