"""Reading and the cached path of two commits: processor time of whole commands, and the ratio.

    python benchmarks/against.py BEFORE [AFTER] [--rows 1200000] [--repeats 7] [--json]

Both run with the same Python and packages, in turn, so that what else the machine does meets both alike. The recording
is that of read_d4rl.py, stored plainly. A cached run finds every artifact made, by the same version before.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from read_d4rl import write_file

POINT = "pointmass-4direction"
TINY = "steps = 6\nhidden = 4\nbatch = 4\n"
RECIPE = (
    '[dataset]\nenv = "{env}"\noffline = ["{offline}"]\nexpert = ["{expert}"]\n'
    f"[disc]\n{TINY}[value]\n{TINY}[policy]\n{TINY}[eval]\nepisodes = 1\ncurve_episodes = 0\n"
)
PROGRAM = """
import smodice_cli
assert smodice_cli.__file__.startswith({code!r})
from smodice_cli.__main__ import main
main()
"""


def processor_time(code: Path, words: list[str], folder: Path) -> float:
    """Seconds of a command and of all that it started."""
    command = [sys.executable, "-P", "-c", PROGRAM.format(code=str(code)), *words]
    environment = os.environ | {"PYTHONPATH": str(code), "PYTHONDONTWRITEBYTECODE": ""}  # modules are compiled once
    with open(os.devnull, "w") as nowhere:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=nowhere, stderr=nowhere)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{words} failed")
    return used.ru_utime + used.ru_stime


def commands(log: Path) -> dict[str, tuple[str, list[str]]]:
    """What is measured: a recipe and a command."""
    recorded = RECIPE.format(env="hopper", offline=f"file:{log}", expert=f"file:{log}#traj=0")
    simulated = RECIPE.format(env=POINT, offline=f"sim:{POINT}#150", expert=f"sim:{POINT}#success=5")
    read = ["build-dataset", "--config", "recipe.toml", "--out", "new.h5", "--force"]
    cached = ["run", "recipe.toml", "--out", "run"]
    return {"reading": (recorded, read), "cached": (recorded, cached), "cached, 150 rows": (simulated, cached)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after", nargs="?", default="HEAD")
    parser.add_argument("--rows", type=int, default=1_200_000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as name:
        root = Path(name).resolve()
        versions = {"before": given.before, "after": given.after}
        for version, commit in versions.items():
            (root / version).mkdir()
            archive = subprocess.run(["git", "archive", commit], check=True, stdout=subprocess.PIPE)
            subprocess.run(["tar", "-x", "-C", root / version], check=True, input=archive.stdout)
        write_file(root / "log.hdf5", given.rows, None)
        for what, (recipe, words) in commands(root / "log.hdf5").items():
            used: dict[str, list[float]] = {version: [] for version in versions}
            for repeat in range(given.repeats + 1):
                for version, seconds in used.items():
                    folder = root / f"{what} {version}"
                    folder.mkdir(exist_ok=True)
                    (folder / "recipe.toml").write_text(recipe)
                    taken = processor_time(root / version, words, folder)
                    seconds += [taken] if repeat else []  # the first makes what the others find
            found = {version: median(seconds) for version, seconds in used.items()}
            results[what] = found | {"ratio": found["after"] / found["before"]}
            results[what]["ratio_of_least"] = min(used["after"]) / min(used["before"])
            if not given.json:
                print(f"{what}: {', '.join(f'{key} {value:.2f}' for key, value in results[what].items())}", flush=True)
    if given.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
