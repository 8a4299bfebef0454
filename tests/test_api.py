"""`import smodice`: what the command line does, as functions; quiet, and from arrays in memory."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ENV, EXPERT, OFFLINE, digest, write_recipe
from conftest import TINY as RECIPE
from recordings import write_file

import smodice
from smodice_cli.algos.acting import NumpyPolicy
from smodice_cli.console import console

TINY: dict[str, Any] = {"steps": 20, "hidden": 8, "batch": 8}
SMALL: dict[str, Any] = {"steps": 40, "hidden": 16, "batch": 16}
pytestmark = pytest.mark.filterwarnings("ignore::smodice.SmodiceWarning")


def walks(episodes: int = 12, steps: int = 10) -> list[dict[str, Any]]:
    """A robot on a line: the first half of its episodes walk to the right, the others to the left."""
    rng = np.random.default_rng(0)
    found = []
    for number in range(episodes):
        actions = (0.1 if number < episodes // 2 else -0.1) + rng.normal(0, 0.02, (steps, 1))
        states = np.concatenate([[[0.5]], 0.5 + np.cumsum(actions, axis=0)])
        found.append({"observations": states, "actions": actions, "terminated": True})
    return found


def chain(data: smodice.Result) -> tuple[smodice.Result, smodice.Result]:
    value = smodice.train_value(smodice.train_disc(data, **TINY), **TINY)
    return value, smodice.train_policy(value, **TINY)


# --- the same as the command line -------------------------------------------------------------------------------------


def test_functions_make_the_files_that_commands_make(finished_run: Path, tmp_path: Path) -> None:
    data = smodice.build_dataset(OFFLINE, EXPERT, env=ENV, out=tmp_path / "dataset.h5")
    value = smodice.train_value(smodice.train_disc(data, **SMALL), **SMALL)
    policy = smodice.train_policy(value, **SMALL)
    score = smodice.evaluate(policy, episodes=2)
    for name in ("dataset.h5", "disc.safetensors", "weights.h5", "policy.safetensors", "eval.json"):
        assert digest(tmp_path / name) == digest(finished_run / name)
    assert score.metrics["episodes"] == 2
    assert smodice.train_disc(data, **SMALL).status == "cached"
    assert smodice.train_disc(data, **SMALL | {"steps": 41}).status == "done"


def test_a_baseline_starts_from_the_data(finished_run: Path, tmp_path: Path) -> None:
    policy = smodice.train_policy(finished_run / "dataset.h5", algo="bc", out=tmp_path / "bc.safetensors", **TINY)
    assert policy.path == tmp_path / "bc.safetensors"


def test_a_recipe_runs_by_path_and_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = write_recipe(tmp_path / "tiny.toml", RECIPE)
    summary = smodice.run(recipe, settings={"value.f": "chi2", "eval.curve_episodes": 0}, out=tmp_path / "run")
    assert summary["per_seed"]["0"]["episodes"] == 2
    monkeypatch.setattr("smodice_cli.recipes.names", lambda: {"mine": recipe})
    again = smodice.run("mine", settings={"value.f": "chi2", "eval.curve_episodes": 0}, out=tmp_path / "run")
    assert again["keys"] == summary["keys"]


def test_a_run_takes_arrays(tmp_path: Path) -> None:
    offline = walks()
    small = {f"{section}.{name}": value for section in ("disc", "value", "policy") for name, value in TINY.items()}
    summary = smodice.run(offline=offline, expert=offline[0]["observations"], out=tmp_path, settings=small)
    assert summary["action_error_mean"] >= 0
    assert Path(summary["policies"][0]).is_file()


@pytest.mark.parametrize("seed", [-1, 1.5, "a", None, True, 2**32])
def test_what_is_no_seed_is_refused(seed: Any, finished_run: Path) -> None:
    with pytest.raises(smodice.SmodiceError, match=r"whole number|seeds"):
        smodice.train_disc(finished_run / "dataset.h5", seed=seed)
    for seeds in (seed, [0, seed], []):
        with pytest.raises(smodice.SmodiceError, match=r"whole number|seeds"):
            smodice.run("pointmass-4direction", seeds=seeds)


def test_a_setting_without_its_section_is_told_where_it_belongs() -> None:
    with pytest.raises(smodice.SmodiceError, match="SECTION") as refused:
        smodice.run("pointmass-4direction", settings={"n_step": 3})
    assert refused.value.hint == "did you mean value.n_step?"


def test_the_recipes_are_listed() -> None:
    found = {recipe.name: recipe for recipe in smodice.recipes()}
    assert found["hopper"].paper == "5.1"
    assert all(recipe.task and recipe.minutes for recipe in found.values())


# --- arrays in memory -------------------------------------------------------------------------------------------------


def test_columns_and_episodes_of_the_same_steps_are_the_same_data(tmp_path: Path) -> None:
    episodes = walks()
    starts = [episode["observations"][:-1] for episode in episodes]
    columns = {
        "observations": np.concatenate(starts),
        "next_observations": np.concatenate([episode["observations"][1:] for episode in episodes]),
        "actions": np.concatenate([episode["actions"] for episode in episodes]),
        "terminals": np.concatenate([np.arange(len(rows)) == len(rows) - 1 for rows in starts]),
        "timeouts": np.zeros(sum(map(len, starts)), bool),
    }
    expert = episodes[0]["observations"]
    paths = {}
    for name, offline in (("episodes", episodes), ("columns", columns)):
        paths[name] = smodice.build_dataset(offline, expert, out=tmp_path / name / "dataset.h5")
    assert paths["episodes"].metrics["rows"] == paths["columns"].metrics["rows"] == 120
    assert paths["episodes"].metrics["episodes"] == 12
    assert paths["episodes"].metrics["expert_states"] == 11
    kept = [(tmp_path / name / "dataset.offline.hdf5").read_bytes() for name in paths]
    assert kept[0] == kept[1]


def test_the_same_arrays_are_cached_and_others_are_not(tmp_path: Path) -> None:
    offline, out = walks(), tmp_path / "dataset.h5"
    expert = {"states": offline[0]["observations"][5:]}
    assert smodice.build_dataset(offline, expert, out=out).status == "done"
    assert smodice.build_dataset(offline, expert, out=out).status == "cached"
    assert smodice.build_dataset(offline[1:], expert, out=out).status == "done"


def test_single_states_are_no_trajectory(tmp_path: Path) -> None:
    offline = walks()
    states = offline[0]["observations"]
    single = smodice.build_dataset(offline, {"states": states}, out=tmp_path / "a/dataset.h5")
    trajectory = smodice.build_dataset(offline, states, out=tmp_path / "b/dataset.h5")
    from smodice_cli import artifacts

    found = [artifacts.load(made.path, "dataset").arrays for made in (single, trajectory)]
    assert [len(arrays["expert/observations"]) for arrays in found] == [11, 11]
    assert ["expert/offsets" in arrays for arrays in found] == [False, True]


@pytest.mark.parametrize(
    ("offline", "words"),
    [
        ({"observations": np.ones((5, 2)), "acts": np.ones((5, 1))}, "'acts' is no column"),
        ([{"observations": np.ones((5, 2)), "actions": np.ones((3, 1))}], "as many observations as actions"),
        ([{"observations": np.ones((5, 2)), "act": np.ones((5, 1))}], "'act' is no part"),
        ({"observations": np.array(["a", "b"])}, "not an array of numbers"),
        (np.ones(3), "expected source texts"),
        (None, "expected source texts"),
        ({"observations": np.full((5, 2), np.nan), "actions": np.ones((5, 1))}, "NaN"),
        ({"observations": np.ones((5, 2))}, "no actions"),
    ],
)
def test_arrays_that_make_no_sense_are_refused_in_a_sentence(offline: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(smodice.SmodiceError, match=words):
        smodice.build_dataset(offline, np.ones((4, 2)), out=tmp_path / "dataset.h5")
    assert not (tmp_path / "dataset.h5").exists()


def test_a_file_of_the_users_is_never_overwritten_by_arrays(tmp_path: Path) -> None:
    theirs = write_file(tmp_path / "dataset.offline.hdf5")
    before = theirs.read_bytes()
    with pytest.raises(smodice.SmodiceError, match="exists"):
        smodice.build_dataset(walks(), walks()[0]["observations"], out=tmp_path / "dataset.h5")
    assert theirs.read_bytes() == before


# --- what was made ----------------------------------------------------------------------------------------------------


def test_weights_are_columns_and_know_their_value_function(finished_run: Path) -> None:
    weights = smodice.load_weights(finished_run / "weights.h5")
    assert {"w", "log_w", "reward", "v", "episode", "t", "source"} <= set(weights)
    assert {len(column) for column in weights.values()} == {3000}
    assert weights["w"].mean() == pytest.approx(1.0)
    np.testing.assert_array_equal(smodice.load_weights(finished_run / "value.safetensors")["w"], weights["w"])
    assert len(smodice.RowWeights.load(finished_run / "value.safetensors").weight) == 3000
    with pytest.raises(smodice.SmodiceError, match="weights is needed"):
        smodice.load_weights(finished_run / "policy.safetensors")


def test_a_policy_acts_without_torch(finished_run: Path) -> None:
    code = (
        "import sys, smodice, numpy as np\n"
        f"policy = smodice.load_policy({str(finished_run / 'policy.safetensors')!r})\n"
        "assert policy.act(np.zeros(4)).shape == (2,)\n"
        "assert policy.act(np.zeros((3, 4)), np.random.default_rng(0)).shape == (3, 2)\n"
        "found = {'torch', 'mujoco', 'gymnasium', 'matplotlib', 'typer'} & set(sys.modules)\n"
        "sys.exit(repr(found) if found else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_policy_trained_with_an_absorbing_state_acts_on_plain_states(tmp_path: Path) -> None:
    offline = walks()
    data = smodice.build_dataset(offline, offline[0]["observations"], out=tmp_path / "dataset.h5", absorbing=True)
    _, policy = chain(data)
    acted = smodice.load_policy(policy).act(np.array([0.7]))
    np.testing.assert_allclose(acted, NumpyPolicy.load(policy).act(np.array([0.7, 0.0])), rtol=1e-6)


def test_a_changed_policy_is_refused(run: Path) -> None:
    path = run / "policy.safetensors"
    whole = bytearray(path.read_bytes())
    whole[-1] ^= 1
    path.write_bytes(whole)
    with pytest.raises(smodice.SmodiceError, match="changed after it was written"):
        smodice.load_policy(path)


# --- manners ----------------------------------------------------------------------------------------------------------


def test_it_is_quiet_and_warns_as_python_does(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    offline = walks()
    data = smodice.build_dataset(offline, offline[0]["observations"], out=tmp_path / "dataset.h5")
    chain(data)
    unmarked = {"observations": np.ones((5, 2)), "actions": np.ones((5, 1))}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        smodice.build_dataset(unmarked, np.ones((4, 2)), out=tmp_path / "unmarked.h5")
    assert capfd.readouterr() == ("", "")
    assert [warning.category for warning in caught] == [smodice.SmodiceWarning]
    assert "count as one episode" in str(caught[0].message)
    assert caught[0].filename == __file__, "it points at the line that called"
    try:
        smodice.verbose()
        smodice.train_disc(data, **TINY | {"steps": 21})
    finally:
        smodice.verbose(False)
    assert "train-disc" in capfd.readouterr().err
    assert console.mode != "library", "the console is as it was"


def test_torch_is_left_as_it_was(finished_run: Path, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        smodice.train_disc(finished_run / "dataset.h5", out=tmp_path / "disc.safetensors", **TINY)
        assert torch.get_num_threads() == 2
        assert float(torch.tensor(1e-40) * 1) > 0, "small numbers are numbers again"
    finally:
        torch.set_num_threads(before)


def test_it_works_in_a_thread(finished_run: Path, tmp_path: Path) -> None:
    made: list[smodice.Result] = []
    out = tmp_path / "disc.safetensors"
    work = threading.Thread(
        target=lambda: made.append(smodice.train_disc(finished_run / "dataset.h5", out=out, **TINY))
    )
    work.start()
    work.join()
    assert made[0].status == "done"


def test_an_error_tells_its_hint_in_the_traceback(finished_run: Path) -> None:
    with pytest.raises(smodice.SmodiceError, match=r"unknown setting 'disc\.stepps'") as caught:
        smodice.train_disc(finished_run / "dataset.h5", stepps=3)
    assert caught.value.__notes__ == ["hint: did you mean steps?"]


def test_a_script_needs_no_main_guard(tmp_path: Path) -> None:
    """Nothing is started that would run the script again, unless it asks for processes."""
    script = tmp_path / "script.py"
    recipe = write_recipe(tmp_path / "tiny.toml", RECIPE)
    script.write_text(f"import smodice\nprint(smodice.run({str(recipe)!r}, out='run')['seeds'])\n")
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "[0]\n"), done.stderr


def test_importing_it_loads_nothing_heavy() -> None:
    heavy = "{'torch', 'numpy', 'mujoco', 'matplotlib', 'h5py', 'gymnasium', 'scipy', 'typer', 'rich'}"
    code = f"import sys, smodice; found = {heavy} & set(sys.modules); sys.exit(repr(found) if found else 0)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr == ""


def test_every_public_name_is_documented_and_typed() -> None:
    assert set(smodice.__all__) == {name for name in vars(smodice) if name in smodice.__all__}
    for name in smodice.__all__:
        thing = getattr(smodice, name)
        if callable(thing):
            assert inspect.getdoc(thing), name
        if inspect.isfunction(thing):
            signature = inspect.signature(thing)
            assert signature.return_annotation is not inspect.Signature.empty
            documented = inspect.getdoc(thing) or ""
            for parameter in signature.parameters:
                assert f"{parameter}:" in documented or f"**{parameter}" in documented or len(signature.parameters) == 1


def test_the_package_is_marked_as_typed() -> None:
    assert (Path(smodice.__file__).parent / "py.typed").is_file()
    imported = ast.parse(Path(smodice.__file__).read_text())
    names = [node.module for node in ast.walk(imported) if isinstance(node, ast.ImportFrom)]
    assert not [name for name in names if name and name.startswith(("smodice_cli.commands", "smodice_cli.cli"))]


# --- what a program may hand over by mistake --------------------------------------------------------------------------

STATES = [[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("train_disc", {"data": None}),
        ("train_disc", {"data": 3}),
        ("train_disc", {"data": "a\0b"}),
        ("train_disc", {"data": b"dataset.h5"}),
        ("train_disc", {"data": "dataset.h5", "out": 3}),
        ("train_disc", {"data": "dataset.h5", "seed": -1}),
        ("train_disc", {"data": "dataset.h5", "seed": 1.5}),
        ("train_disc", {"data": "dataset.h5", "seed": 2**32}),
        ("train_disc", {"data": "dataset.h5", "algo": 3}),
        ("train_disc", {"data": "dataset.h5", "algo": "smodcie"}),
        ("train_disc", {"data": "dataset.h5", "options": {}}),
        ("train_disc", {"data": "dataset.h5", "preset": 3}),
        ("train_disc", {"data": "dataset.h5", "out": "/proc/x.safetensors", **TINY}),
        ("evaluate", {"policy": "policy.safetensors", "env": 3}),
        ("build_dataset", {"offline": STATES, "expert": STATES, "env": None, "out": "x/new.h5"}),
        (
            "build_dataset",
            {"offline": {"observations": STATES, "actions": STATES}, "expert": object(), "out": "x/n.h5"},
        ),
        ("build_dataset", {"offline": {"observations": STATES, "actions": STATES}, "expert": [], "out": "x/n.h5"}),
        ("build_dataset", {"offline": {"observations": 3, "actions": None}, "expert": STATES, "out": "x/n.h5"}),
        ("build_dataset", {"offline": {"observations": [[1], [1, 2]]}, "expert": STATES, "out": "x/n.h5"}),
        ("build_dataset", {"offline": [{"observations": None}], "expert": STATES, "out": "x/n.h5"}),
        ("build_dataset", {"offline": STATES, "expert": STATES, "seed": "x", "out": "x/n.h5"}),
        ("build_dataset", {"offline": STATES, "expert": STATES, "absent": 3, "out": "x/n.h5"}),
        ("build_dataset", {"offline": STATES, "expert": STATES, "out": "/proc/x/n.h5"}),
        ("run", {"recipe": 3}),
        ("run", {"recipe": "absent"}),
        ("run", {"offline": STATES}),
        ("run", {"offline": STATES, "expert": STATES, "out": "x", "seeds": []}),
        ("run", {"offline": STATES, "expert": STATES, "out": "x", "seeds": [0, 0]}),
        ("run", {"offline": STATES, "expert": STATES, "out": "x", "seeds": 3}),
        ("run", {"offline": STATES, "expert": STATES, "out": "x", "jobs": 0}),
        ("run", {"offline": STATES, "expert": STATES, "out": "x", "algos": "bc"}),
        ("run", {"offline": STATES, "expert": STATES, "out": "x", "algos": ["bcc"]}),
        ("run", {"offline": STATES, "expert": STATES, "out": "x", "settings": 3}),
        ("run", {"offline": STATES, "expert": STATES, "out": "x", "settings": {3: 4}}),
        ("run", {"offline": STATES, "expert": STATES, "out": "x", "variants": "absent"}),
        ("load_policy", {"path": None}),
        ("load_weights", {"path": 3}),
    ],
)
def test_a_wrong_argument_is_one_exception_of_ours_and_leaves_nothing(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, wrong: dict[str, Any]
) -> None:
    for file in ("dataset.h5", "policy.safetensors"):
        (tmp_path / file).symlink_to(finished_run / file)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(smodice.SmodiceError):
        getattr(smodice, name)(**wrong)
    left = [path for path in tmp_path.rglob("*") if path.is_file() and not path.is_symlink()]
    assert not left


@pytest.mark.parametrize(
    "wrong", [{"threads": "x"}, {"threads": 0}, {"checkpoint_every": -1}, {"force": 1}, {"env": 3}]
)
def test_options_of_another_type_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(smodice.SmodiceError, match="options: "):
        smodice.Options(**wrong)


def test_a_policy_takes_states_alone(finished_run: Path) -> None:
    policy = smodice.load_policy(finished_run / "policy.safetensors")
    for state in (3.0, "x", None, [1, 2], [[1], [2, 3]]):
        with pytest.raises(smodice.SmodiceError, match="takes states"):
            policy.act(state)  # type: ignore[arg-type]
