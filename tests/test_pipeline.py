"""The whole chain: by its commands one after the other, by `run`, moved, with seeds in parallel, killed and gone on."""

from __future__ import annotations

import json
import re
import shutil
import signal
import tomllib
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from conftest import ENV, SMALL, TINY, Start, digest, listing, refuse, succeed, wait_for, write_recipe
from recordings import write_file

from smodice_cli import artifacts
from smodice_cli.algos.acting import NumpyPolicy

NETWORKS = ("disc.safetensors", "value.safetensors", "policy.safetensors", "policy.snapshots.safetensors")
ARTIFACTS = (*NETWORKS, "weights.h5", "eval.json")


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return write_recipe(tmp_path / "tiny.toml", TINY)


def test_the_five_stages_by_the_commands_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = ("--steps", "20", "--set", "hidden=8", "--set", "batch=8")
    sources = ("--offline", f"sim:{ENV}#600", "--expert", f"sim:{ENV}#success=20")
    succeed("build-dataset", "--env", ENV, *sources, "--out", "runs/pm/dataset.h5")
    succeed("train-disc", "--data", "runs/pm/dataset.h5", "--out", "runs/pm/disc.safetensors", *small)
    outcome = succeed("train-value", "--disc", "runs/pm/disc.safetensors", *small)
    assert "next: smodice inspect runs/pm/weights.h5 ; smodice train-policy --value" in outcome.stderr
    outcome = succeed("train-policy", "--value", "runs/pm/value.safetensors", *small)
    assert "next: smodice eval --policy runs/pm/policy.safetensors" in outcome.stderr
    score = succeed("eval", "--policy", "runs/pm/policy.safetensors", "--episodes", "3", "--json").json["score"]
    assert score["episodes"] == 3
    assert 0.0 <= score["success_rate"] <= 1.0
    assert score["normalized"] == pytest.approx(100 * score["mean_return"])
    assert {row["state"] for row in succeed("status", "runs/pm", "--json").json["artifacts"]} == {"ok"}
    chain = succeed("inspect", "runs/pm/eval.json", "--json").json["provenance"]
    assert [entry["input"] for entry in chain] == ["policy", "snapshots", "dataset", "weights", "disc"]
    assert {entry["state"] for entry in chain} == {"ok"}
    shutil.move("runs/pm", "elsewhere")  # a later stage finds everything from its input's header
    succeed("train-value", "--disc", "elsewhere/disc.safetensors", *small, "--set", "gamma=0.9")
    succeed("train-policy", "--value", "elsewhere/value.safetensors", *small)
    assert not Path("runs/pm").exists()
    files = sorted(path.name for path in Path("elsewhere").iterdir())
    logs = ["disc.log.jsonl", "policy.log.jsonl", "value.log.jsonl"]
    assert files == sorted(["dataset.h5", *ARTIFACTS, *logs]), "nothing else is left, hidden or not"


SEEDS = ("--seeds", "0,1", "--jobs", "2", "--set", "policy.steps=1000", "--set", "eval.curve_episodes=1")


@pytest.fixture(scope="module")
def two_seeds(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder and the summary of a run of two seeds that nothing happened to."""
    folder = tmp_path_factory.mktemp("seeds")
    recipe = write_recipe(folder / "tiny.toml", TINY)
    return folder / "run", succeed("run", recipe, *SEEDS, "--out", folder / "run", "--json").json


def test_seeds_in_parallel_equal_seeds_one_by_one(
    recipe: Path, tmp_path: Path, two_seeds: tuple[Path, dict[str, Any]]
) -> None:
    together, summary = two_seeds
    for seed in ("0", "1"):
        alone = succeed("run", recipe, *SEEDS, "--seeds", seed, "--out", tmp_path / "alone", "--json").json
        assert alone["per_seed"][seed] == summary["per_seed"][seed]
        for name in ARTIFACTS:
            place = Path(f"seed{seed}") / name
            assert digest(together / place) == digest(tmp_path / "alone" / place), place
    for name in ("disc.safetensors", "policy.safetensors"):
        assert digest(together / "seed0" / name) != digest(together / "seed1" / name)
    assert summary == json.loads((together / "summary.json").read_text())
    assert summary["seeds"] == [0, 1]

    before = listing(together)
    outcome = succeed("run", recipe, *SEEDS, "--out", together)
    assert outcome.stderr.count("cached") == 9, outcome.stderr
    after = listing(together)
    assert after.keys() == before.keys()
    assert {name for name in after if after[name] != before[name]} <= {"summary.json"}


def test_a_failing_seed_fails_the_run_with_its_own_sentence_and_code(recipe: Path, tmp_path: Path) -> None:
    said = refuse(6, "run", recipe, "--seeds", "0,1", "--out", tmp_path / "run", "--set", "disc.lr=1e38")
    assert "seed " in said
    assert "became non-finite" in said


def test_a_seed_that_cannot_write_says_so_in_one_sentence(recipe: Path, tmp_path: Path) -> None:
    succeed("run", recipe, "--out", tmp_path / "run")
    (tmp_path / "run" / "seed1").write_text("a file where a folder should be")
    said = refuse(3, "run", recipe, "--seeds", "0,1", "--out", tmp_path / "run")
    assert "seed 1: cannot write" in said


def test_an_interrupted_run_of_several_seeds_goes_on(
    recipe: Path, tmp_path: Path, two_seeds: tuple[Path, dict[str, Any]], start: Start
) -> None:
    """And ends with the artifacts and the scores of one that was never interrupted."""
    out, command = tmp_path / "run", ("run", recipe, *SEEDS, "--out", tmp_path / "run")
    checkpoints = [out / f"seed{seed}" / ".policy.safetensors.ckpt" for seed in (0, 1)]
    while True:
        running = start(*command, "--checkpoint-every", "0")  # a checkpoint after every step: seconds to interrupt it
        wait_for(lambda now=running: all(path.exists() for path in checkpoints) or now.process.exitcode is not None)
        running.signal(signal.SIGINT)
        outcome = running.ends()
        if outcome.code and all(path.exists() for path in checkpoints):
            break
        assert outcome.code in (0, 130), outcome.stderr  # on a busy machine one may end before the other has begun
        shutil.rmtree(out)
    assert outcome.code == 130, outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert "go on with: smodice run" in outcome.stderr
    states = {row["path"]: row["state"] for row in succeed("status", out, "--json").json["artifacts"]}
    for seed in (0, 1):
        assert states[f"seed{seed}/.policy.safetensors.ckpt"].startswith("unfinished, at step")
        assert states[f"seed{seed}/value.safetensors"] == "ok"
        assert f"seed{seed}/policy.safetensors" not in states
    assert not (out / "summary.json").exists()

    before = listing(out)
    outcome = succeed(*command, "--json")
    for seed in (0, 1):
        assert f"seed {seed}: train-policy: resuming from step" in outcome.stderr
        assert f"{out}/seed{seed}/value.safetensors: cached" in outcome.stderr
    after = listing(out)
    made = [f"seed{seed}/{name}" for seed in (0, 1) for name in ARTIFACTS]
    finished = ["dataset.h5", *(name for name in made if name.endswith(("disc.safetensors", "value.safetensors")))]
    assert {name: after[name] for name in finished} == {name: before[name] for name in finished}
    assert not [name for name in after if "/." in name], "nothing hidden is left"

    whole, expected = two_seeds
    assert after.keys() == listing(whole).keys()
    for name in ("dataset.h5", *made):
        assert digest(out / name) == digest(whole / name), name
    for log in (f"seed{seed}/{name}.log.jsonl" for seed in (0, 1) for name in ("disc", "value", "policy")):
        assert (out / log).read_text() == (whole / log).read_text(), log
    summary = json.loads((out / "summary.json").read_text())
    assert summary == outcome.json
    assert without_times(summary) == without_times(expected)


def without_times(summary: dict[str, Any]) -> dict[str, Any]:
    """A summary without what differs between two equal runs: how long they took, and where they are."""

    def without(found: dict[str, Any]) -> dict[str, Any]:
        weights = {seed: told["findings"] for seed, told in found["weights"].items()}
        return {name: value for name, value in found.items() if name not in ("seconds", "folder")} | {
            "weights": weights
        }

    assert summary["methods"]
    return without(summary) | {"methods": [without(row) for row in summary["methods"]]}


def test_status_says_what_is_stale_and_through_what(run: Path) -> None:
    succeed("train-disc", "--data", run / "dataset.h5", "--steps", "10", "--set", "hidden=8", "--set", "batch=8")

    def states() -> dict[str, str]:
        return {row["path"]: row["state"] for row in succeed("status", run, "--json").json["artifacts"]}

    assert states() == {
        "dataset.h5": "ok",
        "disc.safetensors": "ok",
        "value.safetensors": "stale: its disc has changed since",
        "weights.h5": "stale: its disc has changed since",
        "policy.safetensors": "stale: its disc has changed since (through its weights)",
        "policy.snapshots.safetensors": "stale: its disc has changed since (through its weights)",
        "eval.json": "stale: its disc has changed since (through its weights) (through its policy)",
    }
    (run / "policy.safetensors").unlink()
    assert states()["eval.json"] == "its policy is missing"
    (run / "disc.safetensors").write_bytes(b"\x89HDF nonsense")
    assert "damaged or cut short" in states()["disc.safetensors"]


def test_status_notices_a_changed_recording(tmp_path: Path) -> None:
    path = write_file(tmp_path / "log.hdf5")
    sources = ("--offline", f"file:{path}", "--expert", f"file:{path}#states=20")
    succeed("build-dataset", "--env", ENV, *sources, "--out", tmp_path / "run" / "dataset.h5")
    (row,) = succeed("status", tmp_path / "run", "--json").json["artifacts"]
    assert row["state"] == "ok"
    write_file(path, rows=90)
    (row,) = succeed("status", tmp_path / "run", "--json").json["artifacts"]
    assert row["state"] == f"stale: its file:{path} has changed since"
    command = ("build-dataset", "--env", ENV, *sources, "--out", tmp_path / "run" / "dataset.h5", "--json")
    assert succeed(*command).json["reason"] == f"its file:{path} changed"


def test_an_evaluation_scores_the_policy_that_is_there_now(run: Path) -> None:
    """Not one remembered from the same place."""
    command = ("eval", "--policy", run / "policy.safetensors", "--episodes", "2", "--threads", "1", "--json")
    before = succeed(*command).json["digest"]
    small = ("--steps", "60", "--set", "hidden=8", "--set", "batch=8")
    succeed("train-policy", "--value", run / "value.safetensors", *small)
    assert succeed(*command).json["digest"] != before
    fresh = json.loads((run / "eval.json").read_text())
    (run / "copy.safetensors").write_bytes((run / "policy.safetensors").read_bytes())
    other = ("eval", "--policy", run / "copy.safetensors", "--episodes", "2", "--threads", "1", "--out", run / "c.json")
    succeed(*other)
    assert json.loads((run / "c.json").read_text())["per_episode"] == fresh["per_episode"]


def test_the_curve_over_training_ends_with_the_policy_itself(run: Path) -> None:
    small = ("--steps", "50", "--set", "hidden=8", "--set", "batch=8", "--set", "snapshots=5")
    succeed("train-policy", "--value", run / "value.safetensors", *small)
    command = ("eval", "--policy", run / "policy.safetensors", "--episodes", "3", "--set", "curve_episodes=3")
    succeed(*command)
    scores = artifacts.read_payload(run / "eval.json")
    assert [point["step"] for point in scores["curve"]] == [10, 20, 30, 40, 50]
    shared = ("episodes", "mean_return", "std_return", "normalized", "success_rate")
    assert [scores["curve"][-1][name] for name in shared] == [scores["score"][name] for name in shared]
    kept = artifacts.load(run / "policy.snapshots.safetensors", "snapshots").arrays
    final = artifacts.load(run / "policy.safetensors", "policy").arrays
    for name, tensor in final.items():
        np.testing.assert_array_equal(kept[name][-1], tensor)
    assert not np.array_equal(kept["mean.weight"][0], kept["mean.weight"][-1])


def test_a_policy_is_its_own_mode_where_nothing_taught_it_a_spread(run: Path) -> None:
    """Squared error says nothing of the spread: sampling from such a policy must not be noise."""
    small = ("--steps", "300", "--set", "hidden=8", "--set", "batch=32")
    succeed("train-policy", "--value", run / "value.safetensors", *small)
    policy = NumpyPolicy(artifacts.load(run / "policy.safetensors", "policy").arrays)
    states = artifacts.load(run / "dataset.h5", "dataset").arrays["observations"][:50]
    rng = np.random.default_rng(0)
    for state in states:
        np.testing.assert_allclose(policy.act(state, rng), policy.act(state, None), atol=0.05)


def test_the_average_owes_nothing_to_the_untrained_weights(run: Path) -> None:
    small = ("--set", "hidden=8", "--set", "batch=32", "--set", "snapshots=0")
    command = ("train-policy", "--value", run / "value.safetensors", "--out", run / "x.safetensors", *small, "--force")
    policies = {}
    for average in ("0.999", "0"):
        succeed(*command, "--steps", "1", "--set", f"average={average}")
        policies[average] = artifacts.load(run / "x.safetensors", "policy").arrays
    for name, tensor in policies["0"].items():
        np.testing.assert_allclose(policies["0.999"][name], tensor, rtol=1e-5, atol=1e-7)


def test_an_environment_of_gymnasiums(tmp_path: Path) -> None:
    """Any with vectors of states and actions; its score is the return."""
    random = "sim:gym:Pendulum-v1-random"
    data = {"env": "gym:Pendulum-v1", "offline": [f"{random}#400"], "expert": [f"{random}#states=30"]}
    recipe = write_recipe(tmp_path / "r.toml", TINY | {"dataset": data})
    summary = succeed("run", recipe, "--out", tmp_path / "run", "--json").json
    score = summary["per_seed"]["0"]
    assert score["normalized"] == pytest.approx(score["mean_return"], rel=1e-12)
    assert score["mean_return"] < 0
    dataset = artifacts.load(tmp_path / "run/dataset.h5", "dataset")
    assert dataset.arrays["action_high"].tolist() == [2.0]
    others = ("--offline", f"{random}#10", "--expert", f"{random}#traj=0", "--out", tmp_path / "d.h5")
    assert "must be vectors of numbers" in refuse(4, "build-dataset", "--env", "gym:CartPole-v1", *others)
    assert "doesn't exist" in refuse(4, "build-dataset", "--env", "gym:Nothing-v0", *others)


class Slider(gymnasium.Env):
    """One number that starts at 0 and never ends by itself."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))

    def __init__(self, low: float = 0.0, high: float = 1.0) -> None:
        self.action_space = gymnasium.spaces.Box(np.float32([low, -3.0]), np.float32([high, 0.5]))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.place = np.zeros(1, np.float32)
        return self.place, {}

    def step(self, action: np.ndarray) -> Any:
        self.place = self.place + action[:1]
        return self.place, float(self.place[0]), False, False, {}


def test_a_gymnasium_environment_of_ones_own(tmp_path: Path) -> None:
    """Each action with a range of its own, states of one dimension, the origin among them."""
    for name, settings in (("Slider-v0", {"max_episode_steps": 9}), ("Endless-v0", {})):
        gymnasium.register(name, Slider, **settings)
    gymnasium.register("Unbounded-v0", Slider, max_episode_steps=9, kwargs={"high": np.inf})
    random = "sim:gym:Slider-v0-random"
    data = {"env": "gym:Slider-v0", "offline": [f"{random}#90"], "expert": [f"{random}#traj=0"]}
    recipe = write_recipe(tmp_path / "r.toml", TINY | {"dataset": data})
    succeed("run", recipe, "--out", tmp_path / "run")
    found = artifacts.load(tmp_path / "run/dataset.h5", "dataset").arrays
    assert (found["action_low"].tolist(), found["action_high"].tolist()) == ([0.0, -3.0], [1.0, 0.5])
    assert (found["actions"] >= found["action_low"]).all()
    assert found["actions"][:, 1].min() < -2
    succeed("inspect", tmp_path / "run/seed0/weights.h5", "--png", tmp_path / "w.png")
    succeed("report", tmp_path / "run", "--html", tmp_path / "r.html")
    others = ("--offline", f"{random}#10", "--expert", f"{random}#traj=0", "--out", tmp_path / "d.h5")
    assert "has no time limit" in refuse(4, "build-dataset", "--env", "gym:Endless-v0", *others)
    assert "must have bounds" in refuse(4, "build-dataset", "--env", "gym:Unbounded-v0", *others)


def test_recordings_of_a_robot_without_a_simulator(tmp_path: Path) -> None:
    actions = np.random.default_rng(0).uniform(3, 9, (60, 2)).astype(np.float32)
    path = write_file(tmp_path / "log.hdf5", width=7, actions=actions)
    data = {"env": "data", "offline": [f"file:{path}"], "expert": [f"file:{path}#traj=1"]}
    recipe = write_recipe(tmp_path / "r.toml", TINY | {"dataset": data})
    told = succeed("run", recipe, "--out", tmp_path / "run", "--json").json
    found, score = told["policies"], told["per_seed"]["0"]
    assert (score["held_out"], score["trajectories"], score["weighted"]) == (True, 1, True)
    assert {"mean action", "nearest neighbour"} == set(score["beside"])
    assert found == [str(tmp_path / "run/seed0/policy.safetensors")]
    policy = NumpyPolicy.load(found[0])
    assert (policy.obs_dim, policy.act_dim) == (7, 2)
    action = policy.act(np.zeros(7))
    assert ((action >= actions.min(0)) & (action <= actions.max(0))).all()
    assert "action error" in succeed("eval", "--policy", found[0], "--episodes", "2").stdout
    value, out = Path(found[0]).with_name("value.safetensors"), tmp_path / "p.safetensors"
    assert "smodice eval" in succeed("train-policy", "--value", value, "--out", out, "--steps", "5", *SMALL).stderr
    endless = write_file(tmp_path / "endless.hdf5", width=7, actions=actions, terminals=None, timeouts=None)
    one = ("--offline", f"file:{endless}", "--expert", f"file:{path}#traj=1", "--out", tmp_path / "one.h5")
    assert "nothing marks an end among its 59 rows" in succeed("build-dataset", "--env", "data", *one).stderr
    plan = succeed("run", recipe, "--out", tmp_path / "run", "--dry-run", "--json").json["plan"]
    assert [Path(entry["path"]).stem for entry in plan] == ["dataset", "disc", "value", "policy", "eval"]
    assert {entry["status"] for entry in plan} == {"cached"}
    succeed("inspect", tmp_path / "run/seed0/weights.h5")
    succeed("report", tmp_path / "run", "--html", tmp_path / "r.html")
    simulated = ("--offline", f"sim:{ENV}#10", "--expert", f"sim:{ENV}#states=2", "--out", tmp_path / "d.h5")
    assert f"acts in {ENV}, but the data are for data" in refuse(3, "build-dataset", "--env", "data", *simulated)
    terminals = np.arange(60) % 20 == 19
    path = write_file(tmp_path / "ends.hdf5", width=7, actions=actions, terminals=terminals, timeouts=None)
    expert = write_file(tmp_path / "far.hdf5", width=7, actions=actions + 20)
    sources = ("--offline", f"file:{path}", "--expert", f"file:{expert}", "--out", tmp_path / "d.h5", "--absorbing")
    succeed("build-dataset", "--env", "data", *sources, "--set", "expert_actions=true")
    found = artifacts.load(tmp_path / "d.h5", "dataset").arrays
    assert found["action_low"] == pytest.approx(actions.min(0))
    assert found["action_high"] == pytest.approx(actions.max(0) + 20)


def test_a_run_folder_behind_a_symbolic_link(run: Path, tmp_path: Path) -> None:
    """Links between artifacts start from where the files really are."""
    (tmp_path / "far/away").mkdir(parents=True)
    (tmp_path / "runs").symlink_to(tmp_path / "far/away")
    disc = tmp_path / "runs/disc.safetensors"
    few = ("--steps", "20", *SMALL)
    succeed("train-disc", "--data", run / "dataset.h5", "--out", disc, *few)
    succeed("train-value", "--disc", disc, *few)
    states = {row["state"] for row in succeed("status", tmp_path / "runs", "--json").json["artifacts"]}
    assert states == {"ok"}
    store = tmp_path / "store"
    for number, path in enumerate(sorted(run.glob("*.*"))):  # each file a link into a store, as DVC has them
        (store / str(number)).mkdir(parents=True)
        shutil.move(path, store / str(number) / "object")
        path.symlink_to(store / str(number) / "object")
    assert {row["state"] for row in succeed("status", run, "--json").json["artifacts"]} == {"ok"}
    provenance = succeed("inspect", tmp_path / "runs/weights.h5", "--json").json["provenance"]
    assert {entry["state"] for entry in provenance} == {"ok"}
    (tmp_path / "both").symlink_to(run)
    succeed("train-value", "--disc", tmp_path / "both/disc.safetensors", "--out", tmp_path / "v.safetensors", *few)


def test_the_policy_stops_when_the_held_out_loss_no_longer_falls(run: Path) -> None:
    """And the curve ends where it stopped; that a killed run ends the same is tested in test_resume.py."""
    stop = ("--set", "holdout=0.3", "--set", "patience=1", "--set", "lr=1.0", "--set", "average=0.0")
    small = ("--steps", "4000", "--set", "hidden=8", "--set", "batch=8", "--set", "snapshots=40")
    succeed("train-policy", "--value", run / "value.safetensors", *small, *stop)
    log = [json.loads(line) for line in (run / "policy.log.jsonl").read_text().splitlines()]
    watched = [line["held_out"] for line in log if "held_out" in line]
    last = log[-1]["step"]
    assert last < 4000
    assert watched[-1] >= min(watched[:-1]), "the last check was no better than the best before it"
    steps = artifacts.load(run / "policy.snapshots.safetensors", "snapshots").arrays["steps"].tolist()
    assert steps == [*range(100, last, 100), last]
    assert "needs policy.holdout" in refuse(4, "train-policy", "--value", run / "value.safetensors", *stop[2:])


def test_a_policy_without_its_snapshots_is_scored_without_the_curve(run: Path) -> None:
    command = ("eval", "--policy", run / "policy.safetensors", "--episodes", "2", "--threads", "1")
    (run / "policy.snapshots.safetensors").unlink()
    assert "no curve over training: policy.safetensors was made from" in succeed(*command).stderr
    assert artifacts.read_payload(run / "eval.json")["curve"] == []


def test_variants_run_beside_the_recipe_and_share_what_they_do_not_change(recipe: Path, tmp_path: Path) -> None:
    changes, out = tmp_path / "changes.toml", tmp_path / "run"
    changes.write_text('[chi2]\nvalue.f = "chi2"\n[short]\npolicy.steps = 10\n')
    command = ("run", recipe, "--variants", changes, "--out", out, "--json")
    told = succeed(*command).json
    assert [(row["method"], row["steps"]) for row in told["methods"]] == [("smodice", 20), ("chi2", 20), ("short", 10)]
    assert artifacts.read_header(out / "seed0/chi2/value.safetensors").config["f"] == "chi2"
    assert not (out / "seed0/chi2/disc.safetensors").exists()
    assert digest(out / "seed0/short/weights.h5") == digest(out / "seed0/weights.h5")
    found = succeed("report", out, "--html", tmp_path / "report.html", "--json").json["runs"]
    assert sorted(row["method"].partition(":")[0] for row in found) == ["chi2", "short", "smodice"]
    assert {step["status"] for step in succeed(*command, "--dry-run").json["plan"]} == {"cached"}
    assert "go with no other algorithm" in refuse(2, *command, "--algo", "bc")
    for text, words in (
        ("[bc]\nvalue.f = 1\n", "cannot name a variant"),
        ("[seed1]\nvalue.f = 1\n", "cannot name a variant"),
        ("[a]\neval.episodes = 1\n", "not 'eval'"),
        ("a = 1\n", "not 'a'"),
        ("[a]\nvalue.g = 1\n", "unknown setting 'value.g'"),
        ("[a", "not valid TOML"),
    ):
        changes.write_text(text)
        assert words in refuse(4, *command)


PIPELINES = Path(__file__).parents[1] / "pipelines"
RECIPES, VARIANTS = sorted(PIPELINES.glob("*/*.toml")), sorted(PIPELINES.glob("*.toml"))


@pytest.fixture
def no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """D4RL's folder, empty, and no way to its server: nothing answers at the proxy."""
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path / "d4rl"))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "d4rl"


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_shipped_recipe_plans_and_misses_nothing_but_files_of_d4rls(
    path: Path, tmp_path: Path, no_data: Path
) -> None:
    command = ("run", path, "--out", tmp_path / "run", "--json")
    plan = succeed(*command, "--dry-run").json["plan"]
    assert {entry["status"] for entry in plan} == {"would run"}
    algorithms = tomllib.loads(path.read_text()).get("algo", ["smodice"])
    ends = [Path(entry["path"]).relative_to(tmp_path / "run/seed0") for entry in plan if "eval" in entry["path"]]
    assert ends == [Path("" if algo == "smodice" else algo) / "eval.json" for algo in algorithms]
    if "[dataset.d4rl]" in path.read_text():
        assert succeed(*command, "--dry-run", "--source", "d4rl").json["plan"] == plan, "a plan downloads nothing"
        said = refuse(3, *command, "--source", "d4rl")
        missing = re.fullmatch(r"error: (\S+) is not on this machine and .* cannot be reached \(.*\): put (.*)", said)
        assert missing, said
        named_otherwise = missing[1].startswith(
            ("kitchen", "antmaze")
        )  # D4RL's files of these are not called as they are
        name = r"\S+" if named_otherwise else missing[1].replace("-", "_", 1)
        assert re.fullmatch(rf"{name}\.hdf5 into {re.escape(str(no_data))}", missing[2])
    else:
        assert "no section [dataset.d4rl]" in refuse(4, *command, "--source", "d4rl")
    assert not list(tmp_path.iterdir()), "nothing is written"


@pytest.mark.parametrize("changes", VARIANTS, ids=lambda path: path.stem)
def test_shipped_variants_plan(changes: Path, tmp_path: Path) -> None:
    names = list(tomllib.loads(changes.read_text()))
    hopper = PIPELINES / "observations/hopper.toml"
    plan = succeed("run", hopper, "--variants", changes, "--dry-run", "--out", tmp_path / "run", "--json").json["plan"]
    assert [Path(entry["path"]).parent.name for entry in plan if "eval" in entry["path"]] == ["seed0", *names]


def test_recipes_and_variants_are_shipped() -> None:
    assert {path.parent.name for path in RECIPES} >= {"observations", "mismatched", "examples"}
    assert VARIANTS
