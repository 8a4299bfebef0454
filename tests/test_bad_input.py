"""Bad input: one clear sentence, the right exit code, nothing written."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ENV, EXPERT, OFFLINE, SMALL, Start, digest, listing, refuse, smodice, succeed
from recordings import write_file

from smodice_cli import artifacts
from smodice_cli.errors import InputError

SIM = ("--offline", f"sim:{ENV}#300", "--expert", f"sim:{ENV}#success=10")


def build(tmp_path: Path, code: int, *flags: str) -> str:
    """A failing build-dataset: no file, no folder, no lock may remain."""
    before = listing(tmp_path)
    said = refuse(code, "build-dataset", "--env", ENV, *flags, "--out", tmp_path / "runs" / "x" / "dataset.h5")
    assert listing(tmp_path) == before
    assert not (tmp_path / "runs").exists()
    return said


def spoiled(name: str, row: int, value: float, width: int = 4) -> dict[str, np.ndarray]:
    column = np.random.default_rng(1).uniform(-1, 1, (60, width))
    column[row] = value
    return {name: column}


# --- sources ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offline", "code", "words"),
    [
        ("file:absent.hdf5", 3, "absent.hdf5 does not exist"),
        ("nowhere", 2, "expected SCHEME:NAME"),
        ("ftp:x", 2, "expected SCHEME:NAME"),
        ("sim:", 2, "names nothing"),
        ("sim:pointmas-4direction#300", 2, "nothing to simulate under the name"),
        (f"sim:{ENV}", 2, "a simulation needs a size"),
        (f"sim:{ENV}#0", 2, "needs a positive whole number"),
        (f"sim:{ENV}#-3", 2, "unknown selection"),
        (f"sim:{ENV}#rows=3", 2, "unknown selection '#rows'"),
        (f"sim:{ENV}#success=3", 2, "selects states, not transitions"),
    ],
)
def test_a_source_that_means_nothing(tmp_path: Path, offline: str, code: int, words: str) -> None:
    assert words in build(tmp_path, code, "--offline", offline, "--expert", f"sim:{ENV}#success=10")


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (spoiled("observations", 7, np.nan), "observations hold NaN or infinite values, first in transition 7"),
        (spoiled("observations", 7, 1e300), "observations hold NaN or infinite values"),
        (spoiled("observations", 7, 0.0), "all zeros, first in transition 7"),
        (spoiled("actions", 9, np.inf, 2), "actions hold NaN or infinite values, first in transition 9"),
        ({"rewards": np.full(60, np.nan)}, "rewards hold NaN or infinite values"),
        ({"observations": np.ones((60, 5))}, f"observations have 5 dimensions, but {ENV} has 4"),
        ({"actions": np.ones((60, 3))}, f"actions have 3 dimensions, but {ENV} has 2"),
        ({"next_observations": np.ones((60, 3))}, "'next_observations' and 'observations' differ in their dimensions"),
        ({"rewards": np.full(60, 1e300)}, "rewards hold NaN or infinite values"),
        ({"terminals": np.where(np.arange(60) == 7, np.nan, 0.0)}, "'terminals' must be true or false, 1 or 0"),
        ({"timeouts": np.full(60, 0.3)}, "'timeouts' must be true or false, 1 or 0"),
        ({"actions": np.ones((59, 2))}, "'actions' has 59 rows, 'observations' 60"),
        ({"terminals": np.zeros((60, 2))}, "'terminals' has more than one number a row"),
        ({"observations": np.ones((0, 4))}, "has no rows"),
        ({"observations": np.array([b"x"] * 60)}, "is not an array of numbers"),
        ({"actions": None}, "has no 'actions'"),
        ({"observations": None}, "has no 'observations'"),
    ],
)
def test_a_recording_with_unusable_rows(tmp_path: Path, columns: dict[str, np.ndarray], words: str) -> None:
    path = write_file(tmp_path / "log.hdf5", **columns)
    assert words in build(tmp_path, 3, "--offline", f"file:{path}", "--expert", f"sim:{ENV}#success=10")


@pytest.mark.parametrize("keep", [0, 4, 100, 3000], ids="{} bytes".format)
def test_a_recording_that_is_cut_short(tmp_path: Path, keep: int) -> None:
    path = write_file(tmp_path / "log.hdf5")
    path.write_bytes(path.read_bytes()[:keep])
    said = build(tmp_path, 3, "--offline", f"file:{path}", "--expert", f"sim:{ENV}#success=10")
    assert "is not an HDF5 file, or is cut short" in said


def test_a_recording_that_is_not_hdf5(tmp_path: Path) -> None:
    (tmp_path / "log.hdf5").write_text("time,x,y\n0,1,2\n")
    said = build(tmp_path, 3, "--offline", f"file:{tmp_path}/log.hdf5", "--expert", f"sim:{ENV}#success=10")
    assert "is not an HDF5 file" in said


@pytest.mark.parametrize(
    ("selection", "code", "words"),
    [
        ("#traj=3", 3, "has only 3 trajectories (counted from 0)"),
        ("#episodes=4", 3, "has only 3 trajectories"),
        ("#states=900", 3, "has only"),
        ("#success", 3, "holds no states"),
        ("#success=1", 3, "has only 0 such states"),
        ("#traj=x", 2, "needs a positive whole number"),
    ],
)
def test_an_expert_that_is_not_there(tmp_path: Path, selection: str, code: int, words: str) -> None:
    path = write_file(tmp_path / "demo.hdf5")
    assert words in build(tmp_path, code, "--offline", f"sim:{ENV}#300", "--expert", f"file:{path}{selection}")


def test_a_simulation_that_never_succeeds_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smodice_cli.sources.expert.SEARCHED", 1000)
    said = build(tmp_path, 3, "--offline", f"sim:{ENV}#300", "--expert", f"sim:{ENV}-random#success=5")
    assert "has only 0 such states in" in said


def test_an_expert_with_unusable_states(tmp_path: Path) -> None:
    for value, words in ((np.nan, "holds NaN or infinite states"), (0.0, "all zeros")):
        path = write_file(tmp_path / "demo.hdf5", **spoiled("observations", 3, value))
        assert words in build(tmp_path, 3, "--offline", f"sim:{ENV}#300", "--expert", f"file:{path}")


def test_an_expert_with_unusable_rewards(tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.hdf5", rewards=np.full(60, np.nan))
    said = build(tmp_path, 3, "--offline", f"sim:{ENV}#300", "--expert", f"file:{path}#traj=0")
    assert "holds NaN or infinite rewards" in said


def test_files_that_are_not_ours_or_of_another_kind_stay(run: Path, tmp_path: Path) -> None:
    few = ("--steps", "20", *SMALL)
    shutil.copy(run / "dataset.h5", run / "x.weights.h5")
    (run / "y.log.jsonl").write_text("my notes\n")
    (run / "folder.safetensors").mkdir()
    (run / "film.gif").write_text("mine")
    before = listing(run)
    value = ("train-value", "--disc", run / "disc.safetensors", *few, "--out")
    assert "holds an artifact of the kind dataset, not weights" in refuse(5, *value, run / "x.safetensors")
    assert "is no log of smodice's" in refuse(5, *value, run / "y.safetensors")
    assert "is a folder" in refuse(5, *value, run / "folder.safetensors", "--force")
    assert "exists" in refuse(5, "eval", "--policy", run / "policy.safetensors", "--video", run / "film.gif")
    assert listing(run) == before
    assert "where the picture goes" in refuse(2, "tabular", "example", "--out", tmp_path / "x.png")


def test_a_policy_that_was_replaced_is_not_scored(run: Path) -> None:
    from smodice_cli.stages import evaluate

    with pytest.raises(InputError, match="was replaced while it was being evaluated"):
        evaluate._policy(run / "policy.safetensors", "another", None)


def test_an_algorithm_without_the_stage(run: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "x.safetensors", "--steps", "20", *SMALL)
    assert "bc has no train-disc: it starts from --data" in refuse(
        2, "train-disc", "--algo", "bc", "--data", run / "dataset.h5", *out
    )
    succeed("train-disc", "--algo", "sail", "--data", run / "dataset.h5", *out)
    said = refuse(3, "train-value", "--disc", tmp_path / "x.safetensors")
    assert "needs a discriminator with loss = cross-entropy" in said
    path = write_file(tmp_path / "log.hdf5")
    data = ("--offline", f"file:{path}", "--expert", f"file:{path}#traj=0", "--out", tmp_path / "d.h5")
    succeed("build-dataset", "--env", ENV, *data)
    assert "every one of them is 0" in refuse(3, "train-policy", "--algo", "td3bc", "--data", tmp_path / "d.h5")


def test_an_expert_of_another_width_needs_expert_dims(tmp_path: Path) -> None:
    path = write_file(tmp_path / "demo.hdf5", width=3)
    sources = ("--offline", f"sim:{ENV}#300", "--expert", f"file:{path}")
    assert "has 3 dimensions, the offline states 4" in build(tmp_path, 3, *sources)
    succeed("build-dataset", "--env", ENV, *sources, "--expert-dims", "0:2", "--out", tmp_path / "dataset.h5")
    assert artifacts.load(tmp_path / "dataset.h5", "dataset").arrays["expert/observations"].shape[1] == 2


@pytest.mark.parametrize("dims", ["2:2", "0:5", "1,1", "-1", "x", "0:", "9"])
def test_expert_dims_that_do_not_exist(tmp_path: Path, dims: str) -> None:
    assert "--expert-dims" in build(tmp_path, 2, *SIM, "--expert-dims", dims)


def test_no_environment_and_no_source(tmp_path: Path) -> None:
    out = ("--out", tmp_path / "runs" / "dataset.h5")
    assert "which environment?" in refuse(2, "build-dataset", *SIM, *out)
    outcome = smodice("build-dataset", "--env", "pointmass-4directions", *SIM, *out)
    assert outcome.code == 4
    assert "did you mean pointmass-4direction" in outcome.stderr
    assert "no expert source" in refuse(2, "build-dataset", "--env", ENV, "--offline", OFFLINE, *out)
    assert "no offline source" in refuse(2, "build-dataset", "--env", ENV, "--expert", EXPERT, *out)
    assert not list(tmp_path.iterdir())


def test_actions_beyond_the_bounds_are_clipped_counted_and_noted(tmp_path: Path) -> None:
    actions = np.random.default_rng(1).uniform(-1, 1, (60, 2))
    actions[[3, 20, 41], [0, 1, 0]] = [1.5, -2.0, 1.0001]
    path = write_file(tmp_path / "log.hdf5", actions=actions)
    out = tmp_path / "dataset.h5"
    sources = ("--offline", f"file:{path}", "--expert", f"sim:{ENV}#success=10")
    outcome = succeed("build-dataset", "--env", ENV, *sources, "--out", out)
    sentence = "3 of 57 actions lay outside [-1, 1] and were clipped to it"
    assert sentence in outcome.stderr
    dataset = artifacts.load(out, "dataset")
    assert any(sentence in note for note in dataset.header.notes)
    assert np.abs(dataset.arrays["actions"]).max() == 1.0


# --- artifacts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["train-disc", "train-value", "train-policy", "eval"])
def test_an_input_that_is_missing_or_cut_short_or_of_another_kind(run: Path, stage: str) -> None:
    flag, name = {
        "train-disc": ("--data", "dataset.h5"),
        "train-value": ("--disc", "disc.safetensors"),
        "train-policy": ("--value", "value.safetensors"),
        "eval": ("--policy", "policy.safetensors"),
    }[stage]
    (run / "cut").write_bytes((run / name).read_bytes()[:-5])
    (run / "text").write_text("hello, this is no artifact")
    before = listing(run)
    out = ("--out", run / "new" / "out")
    assert "does not exist" in refuse(3, stage, flag, run / "absent", *out)
    assert "damaged or cut short" in refuse(3, stage, flag, run / "cut", *out)
    assert "neither HDF5, safetensors nor JSON" in refuse(3, stage, flag, run / "text", *out)
    assert "is an artifact of the kind eval, where one of the kind" in refuse(3, stage, flag, run / "eval.json", *out)
    assert "is a folder" in refuse(3, stage, flag, run, *out)
    assert listing(run) == before


def test_status_and_inspect_of_nothing(tmp_path: Path) -> None:
    assert "is not a folder" in refuse(3, "status", tmp_path / "absent")
    assert "holds no artifacts" in refuse(3, "status", tmp_path)
    assert "does not exist" in refuse(3, "inspect", tmp_path / "absent")


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--steps", "0"), "disc.steps = 0 is out of range: it must be above 0"),
        (("--steps", "-5"), "disc.steps = -5 is out of range"),
        (("--set", "batch=0"), "disc.batch = 0 is out of range"),
        (("--set", "lr=0"), "disc.lr = 0.0 is out of range"),
        (("--set", "lr=inf"), "disc.lr = inf is out of range: it must be finite"),
        (("--set", "lr=nan"), "disc.lr = nan is out of range"),
        (("--set", "lr=quick"), "disc.lr = 'quick' must be of type float"),
        (("--set", "steps=1.5"), "disc.steps = 1.5 must be of type int"),
        (("--set", "steps=true"), "disc.steps = True must be of type int"),
        (("--set", "lrr=1"), "unknown setting 'disc.lrr'"),
        (("--set", "lr"), "expected KEY=VALUE"),
        (("--set", "lr={a=1}"), "expected a single value, not a table"),
        (("--set", "hidden=99999999999999999999"), "disc.hidden = 99999999999999999999 is out of range"),
        (("--set", "disc.sail.lr=1.0"), "settings of sail, which does not run"),
        (("--set", "value.gamma=0.9"), "this stage reads only [disc]"),
        (("--set", "disk.lr=1"), "unknown section 'disk'"),
        (("--preset", "papr"), "unknown preset 'papr'"),
    ],
)
def test_a_setting_that_is_unknown_or_out_of_range(run: Path, flags: tuple[str, ...], words: str) -> None:
    before = listing(run)
    assert words in refuse(4, "train-disc", "--data", run / "dataset.h5", "--out", run / "new.safetensors", *flags)
    assert listing(run) == before


@pytest.mark.parametrize(
    ("stage", "flags"),
    [
        ("train-value", ("--gamma", "1")),
        ("train-value", ("--gamma", "0")),
        ("train-value", ("--alpha", "-1")),
        ("train-value", ("--f", "chi3")),
        ("train-policy", ("--loss", "huber")),
        ("train-policy", ("--sampling", "all")),
        ("train-policy", ("--entropy", "--loss", "mse")),
        ("train-value", ("--set", "cap=0.5")),
        ("train-value", ("--set", "patience=3", "--set", "holdout=0.0")),
    ],
)
def test_a_flag_out_of_range(run: Path, stage: str, flags: tuple[str, ...]) -> None:
    flag = ("--disc", run / "disc.safetensors") if stage == "train-value" else ("--value", run / "value.safetensors")
    before = listing(run)
    refuse(4, stage, *flag, "--out", run / "new.safetensors", *flags)
    assert listing(run) == before


@pytest.mark.parametrize(
    ("text", "words", "near"),
    [
        ("[value]\ngama = 0.9", "unknown setting 'value.gama'", "did you mean gamma"),
        ("[valeu]\ngamma = 0.9", "unknown section 'valeu'", "did you mean value"),
        ("[value]\ngamma = 1.5", "value.gamma = 1.5 is out of range: it must be below 1", ""),
        ('[value]\nf = "tv"', "is not one of kl, chi2", ""),
        ("[dataset]\noffline = 3", "must be a list of strings", ""),
        ("[eval]\nepisodes = 0", "eval.episodes = 0 is out of range", ""),
        ("value = 3", "'value' must be a section", ""),
        ("preset = 3", "unknown preset '3'", ""),
        ("preset = []", "unknown preset '[]'", ""),
        ("[eval]\nepisodes = {a=1}", "expected a single value, not a table", ""),
        ("[eval.td3bc]\nepisodes = 7", "expected a single value, not a table", ""),
        ('[policy.td3bc]\nstepz = "many"', "unknown setting 'policy.stepz'", "did you mean steps"),
        ("[policy.td3cb]\nsteps = 7", "unknown algorithm", "did you mean td3bc"),
        ("[value", "is not valid TOML", ""),
    ],
)
def test_a_recipe_that_cannot_be_meant(tmp_path: Path, text: str, words: str, near: str) -> None:
    (tmp_path / "r.toml").write_text(text)
    outcome = smodice("run", tmp_path / "r.toml", "--out", tmp_path / "run")
    assert outcome.code == 4, outcome.stderr
    assert words in outcome.stderr
    assert near in outcome.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["r.toml"]


def test_a_file_that_is_no_recipe_is_not_printed(run: Path) -> None:
    assert "is no recipe, which is a TOML file" in refuse(4, "recipes", run / "dataset.h5")


def test_a_recipe_that_is_not_there(tmp_path: Path) -> None:
    assert "does not exist" in refuse(3, "run", tmp_path / "absent.toml", "--out", tmp_path / "run")
    assert "does not exist" in refuse(3, "run", tmp_path, "--out", tmp_path / "run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("seeds", ["", "a", "0,", "0,0", "-1", "1.5", "²", str(2**40)])
def test_seeds_that_are_no_seeds(tmp_path: Path, seeds: str) -> None:
    (tmp_path / "r.toml").write_text("")
    assert "--seeds" in refuse(2, "run", tmp_path / "r.toml", "--seeds", seeds)


@pytest.mark.parametrize(
    "flags", [("--seed", "-1"), ("--steps", "many"), ("--threads", "0"), ("--threads", "99999"), ("--bogus",)]
)
def test_flags_that_typer_refuses(run: Path, flags: tuple[str, ...]) -> None:
    before = listing(run)
    assert smodice("train-disc", "--data", run / "dataset.h5", "--out", run / "new", *flags).code == 2
    assert listing(run) == before


def test_a_device_that_is_not_there(run: Path) -> None:
    before = listing(run)
    command = ("train-disc", "--data", run / "dataset.h5", "--out", run / "new.safetensors", "--device")
    assert "cannot be used" in refuse(3, *command, "warp9")
    assert "cannot be used" in refuse(3, *command, "cuda:7")
    assert listing(run) == before
    assert smodice(*command, "auto", "--steps", "5", "--set", "hidden=8").code == 0, "there is always some device"


# --- targets ----------------------------------------------------------------------------------------------------------


def test_a_target_that_cannot_be_written(run: Path) -> None:
    (run / "file").write_text("x")
    before = listing(run)
    for place in (run / "file" / "deeper" / "new.safetensors", Path("/proc/nowhere/new.safetensors")):
        said = refuse(3, "train-disc", "--data", run / "dataset.h5", "--out", place)
        assert f"cannot write {place}" in said
    assert listing(run) == before


@pytest.mark.parametrize("stage", ["build-dataset", "train-disc", "train-value"])
def test_a_target_that_fills_up(run: Path, start: Start, stage: str) -> None:
    """No file may grow beyond 20 kB: what a full disk does, a little earlier."""
    out = run / "full" / ("out.h5" if stage == "build-dataset" else "out.safetensors")
    sources = ("--env", ENV, "--offline", f"sim:{ENV}#2000", "--expert", f"sim:{ENV}#success=10")
    commands = {
        "build-dataset": sources,
        "train-disc": ("--data", run / "dataset.h5", "--steps", "5"),
        "train-value": ("--disc", run / "disc.safetensors", "--steps", "5", *SMALL),
    }
    before = listing(run)
    outcome = start(stage, *commands[stage], "--out", out, limit=20_000).ends()
    assert outcome.code == 3, outcome.stderr
    assert "cannot write" in outcome.stderr
    assert "Traceback" not in outcome.stderr
    left = {name for name in listing(run) if name not in before}
    assert left <= {"full/out.log.jsonl"}, left


def test_a_full_target_keeps_the_old_artifact(run: Path, start: Start) -> None:
    before = digest(run / "disc.safetensors")
    command = ("train-disc", "--data", run / "dataset.h5", "--steps", "5", "--set", "hidden=64", "--seed", "3")
    outcome = start(*command, limit=10_000).ends()
    assert outcome.code == 3, outcome.stderr
    assert digest(run / "disc.safetensors") == before


# --- divergence -------------------------------------------------------------------------------------------------------


def test_a_loss_that_becomes_non_finite_ends_with_6_and_what_to_try(run: Path) -> None:
    before = listing(run)
    command = ("train-disc", "--data", run / "dataset.h5", "--out", run / "new.safetensors", "--steps", "50", *SMALL)
    outcome = smodice(*command, "--set", "lr=1e38")
    assert outcome.code == 6, outcome.stderr
    assert "became non-finite at step" in outcome.stderr
    assert "try a smaller learning rate" in outcome.stderr
    assert listing(run) == before


def test_the_last_good_checkpoint_survives_divergence(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from smodice_cli.algos import discriminator

    real, calls = discriminator.discriminator_loss, []

    def fails_in_the_end(expert, offline, prior):  # type: ignore[no-untyped-def]
        calls.append(1)
        loss, info = real(expert, offline, prior)
        return (loss * float("nan"), info) if len(calls) > 30 else (loss, info)

    monkeypatch.setattr(discriminator, "discriminator_loss", fails_in_the_end)
    command = ("train-disc", "--data", run / "dataset.h5", "--out", run / "new.safetensors", "--steps", "50", *SMALL)
    outcome = smodice(*command, "--checkpoint-every", "0")
    assert outcome.code == 6, outcome.stderr
    assert "non-finite at step 30" in outcome.stderr
    assert f"is kept in {run}/.new.safetensors.ckpt" in outcome.stderr
    checkpoint = artifacts.load(run / ".new.safetensors.ckpt", "checkpoint")
    assert checkpoint.header.metrics["step"] == 30
    assert all(np.isfinite(array).all() for name, array in checkpoint.arrays.items() if name.startswith("module"))
    assert not (run / "new.safetensors").exists()
    monkeypatch.undo()
    assert "resuming from step 30" in succeed(*command).stderr


def test_the_step_that_went_wrong_is_told_though_nobody_looked_at_once(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from smodice_cli.algos.discriminator import DiscriminatorLearner as Learner

    def update(self: Learner, step: int) -> dict[str, torch.Tensor]:
        return {"loss": torch.tensor(math.nan if step in (130, 140) else 0.0)}

    monkeypatch.setattr(Learner, "update", update)
    before = listing(run)
    command = ("train-disc", "--data", run / "dataset.h5", "--out", run / "new.safetensors", "--steps", "300", *SMALL)
    outcome = smodice(*command)
    assert outcome.code == 6, outcome.stderr
    assert "became non-finite at step 130; nothing was written" in outcome.stderr
    assert set(listing(run)) - set(before) <= {"new.log.jsonl"}


def test_a_last_step_that_spoils_the_network_is_noticed(run: Path) -> None:
    """The loss of the only step is finite; what it makes of the parameters is not."""
    command = ("train-disc", "--data", run / "dataset.h5", "--out", run / "new.safetensors", "--steps", "1", *SMALL)
    assert smodice(*command, "--set", "lr=1e39").code == 6
    assert not (run / "new.safetensors").exists()


def test_errors_can_be_read_by_programs(run: Path) -> None:
    """stdout stays empty (see `refuse`) also with --json; the error is on stderr."""
    refuse(3, "train-disc", "--data", run / "absent.h5", "--json")
    assert json.loads(succeed("inspect", run / "eval.json", "--json").stdout)["kind"] == "eval"
