"""One of everything added from the tests' own folder (`toys`), and used through the real command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import write_recipe

from smodice_cli import artifacts

SMALL = {"steps": 20, "hidden": 8, "batch": 8}
RECIPE: dict[str, dict[str, Any]] = {
    "dataset": {"env": "line", "offline": ["sim:line#400", "sim:line-random#200"], "expert": ["sim:line#success=20"]},
    "disc": SMALL,
    "value": SMALL | {"f": "hellinger"},
    "policy": SMALL,
    "eval": {"episodes": 2, "curve_episodes": 0},
}


def smodice(
    *arguments: str | Path, plugins: str = "toys", where: Path = Path(__file__).parent
) -> subprocess.CompletedProcess[str]:
    """A process of its own that knows the plug-in, and whose own processes do."""
    environment = {**os.environ, "PYTHONPATH": str(where), "SMODICE_PLUGINS": plugins}
    command = [sys.executable, "-m", "smodice_cli", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def succeed(*arguments: str | Path) -> str:
    done = smodice(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of it at once: data of the toy environment, the toy divergence, the toy algorithm, the toy stage."""
    folder = tmp_path_factory.mktemp("plugins")
    recipe = write_recipe(folder / "toy.toml", {**RECIPE, "grade": {"needed": 0.0}})
    recipe.write_text('algo = ["smodice", "bc-late"]\n' + recipe.read_text())
    told = json.loads(succeed("run", recipe, "--seeds", "0,1", "--out", folder / "run", "--json"))
    assert [row["method"] for row in told["methods"]] == ["smodice", "bc-late"]
    return folder / "run"


def test_a_run_uses_them_in_all_its_processes(run: Path) -> None:
    assert artifacts.read_header(run / "seed1/value.safetensors").config["f"] == "hellinger"
    weights = artifacts.load(run / "seed0/weights.h5", "weights").arrays["w"]
    assert np.isfinite(weights).all()
    assert weights.mean() == pytest.approx(1.0)
    for folder in ("seed0", "seed1/bc-late"):
        assert artifacts.read_payload(run / folder / "grade.json")["passed"] is True, "the stage is part of the run"
    late = artifacts.read_header(run / "seed0/bc-late/policy.safetensors")
    assert (late.config["algo"], late.config["skip"]) == ("bc-late", 3)


def test_status_inspect_and_report_know_them(run: Path, tmp_path: Path) -> None:
    listed = json.loads(succeed("status", run, "--json"))["artifacts"]
    assert {row["kind"]: row["state"] for row in listed}["grade"] == "ok"
    shown = json.loads(succeed("inspect", run / "seed0/grade.json", "--json"))
    assert (shown["stage"], shown["metrics"]["passed"]) == ("grade", True)
    assert "passed" in succeed("inspect", run / "seed0/grade.json")
    found = json.loads(succeed("report", run, "--html", tmp_path / "r.html", "--json"))["runs"]
    assert sorted(row["method"].partition(":")[0] for row in found) == ["bc-late", "smodice"]
    page = (tmp_path / "r.html").read_text()
    assert "smodice train-policy --data" in page
    assert "--algo bc-late" in page
    assert "smodice grade --eval" in page


def test_the_command_line_offers_them(run: Path) -> None:
    assert "grade" in succeed("--help")
    said = " ".join(succeed("grade", "--help").split())
    assert "--needed" in said
    assert "smodice grade --eval runs/pm/eval.json" in said
    assert "bc-late" in succeed("train-policy", "--help")
    assert "hellinger" in succeed("train-value", "--help")
    settings = json.loads(succeed("settings", "--json"))
    assert settings["policy.skip"]["meaning"].endswith("bc-late only")
    assert settings["grade.needed"]["default"] == "50.0"
    assert json.loads(succeed("envs", "--json"))["line"]["success"] == "toys:arrived"
    told = json.loads(succeed("grade", "--eval", run / "seed0/eval.json", "--needed", "101", "--json"))
    assert (told["status"], told["reason"], told["passed"]) == ("done", "needed changed from 0.0 to 101.0", False)


def test_a_stage_may_stand_outside_of_runs(run: Path) -> None:
    assert not list(run.rglob("count.json"))
    told = json.loads(succeed("count", "--data", run / "dataset.h5", "--set", "needed=600", "--json"))
    assert told["metrics"] == {"rows": 600, "enough": True}
    assert artifacts.read_payload(run / "count.json") == {"rows": 600}


def test_a_setting_of_another_algorithm_is_refused_as_of_any(run: Path, tmp_path: Path) -> None:
    done = smodice("train-policy", "--data", run / "dataset.h5", "--algo", "bc", "--set", "skip=1")
    assert (done.returncode, "policy.skip is not read by bc" in done.stderr) == (4, True)
    done = smodice("tabular", "example", "--f", "hellinger", "--out", tmp_path / "t.h5", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"]["mean_ratio"] == pytest.approx(1.0, abs=1e-6)


def test_a_layout_is_read_like_any_other(tmp_path: Path) -> None:
    path = tmp_path / "log.steps"
    path.write_text("".join(f"{episode},{step},{episode + 1},0.5\n" for episode in range(3) for step in range(5)))
    arguments = ("--env", "data", "--offline", f"file:{path}#2", "--expert", f"file:{path}#traj=2")
    metrics = json.loads(succeed("build-dataset", *arguments, "--out", tmp_path / "d.h5", "--json"))["metrics"]
    arrays = artifacts.load(tmp_path / "d.h5", "dataset").arrays
    np.testing.assert_array_equal(arrays["observations"][:, 0], [0, 1, 2, 3] * 2)
    np.testing.assert_array_equal(arrays["next_observations"][:, 0], [1, 2, 3, 4] * 2)
    np.testing.assert_array_equal(arrays["expert/observations"], [[step, 3] for step in range(5)])
    assert metrics["offline"][0]["rewards"] is False
    path.write_text("no,numbers,at,all\n")
    done = smodice("build-dataset", *arguments, "--out", tmp_path / "new.h5")
    assert (done.returncode, f"{path} is not a file of steps, or is cut short" in done.stderr) == (3, True)


BROKEN = {
    "ends": ("raise SystemExit(0)", "cannot be imported (SystemExit: 0)"),
    "no_python": ("def (", "cannot be imported (SyntaxError: invalid syntax"),
    "adds_nonsense": ("from smodice_cli.algos import ALGORITHMS; ALGORITHMS.add('x', 3)", "cannot be used"),
    "names_nothing": ("from smodice_cli.stages import STAGES; STAGES.add('x', 'nothing:X')", "cannot be used"),
}


@pytest.mark.parametrize("name", ["nothing_of_this_name", "..", "a b", *BROKEN])
def test_a_plug_in_that_cannot_be_used_is_one_sentence(name: str, tmp_path: Path) -> None:
    code, words = BROKEN.get(name, ("", f"{name} cannot be imported"))
    if code:
        (tmp_path / f"{name}.py").write_text(code)
    done = smodice("envs", plugins=name, where=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "SMODICE_PLUGINS: " in done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
