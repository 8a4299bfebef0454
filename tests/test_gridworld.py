"""The paper's gridworlds over 20 seeds, maps, data collection, and the tabular command with its artifacts."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from conftest import refuse, succeed

from smodice_cli import artifacts
from smodice_cli.envs import gridworld
from smodice_cli.errors import InputError
from smodice_cli.stages import finite as stage
from smodice_cli.stages.tabular import Config
from smodice_cli.views.render.output import is_ours
from smodice_cli.views.tabular import SOFTWARE, segments

DIAGONAL = [20, 30, 40, 50, 60]
MAZE = "#######\n#S..#.#\n#.#...#\n#.#.#G#\n#######\n"


def paper_task(task: str, **changes) -> Config:
    return Config(task=task, torus=True, expert="diagonal" if task == "mismatched" else "goal", **changes)


# --- the paper's experiments ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("f", ["chi2", "kl"])
@pytest.mark.parametrize("seed", range(20))
def test_example_task_reaches_success_as_in_the_paper(seed, f):
    arrays, metrics, _ = stage.solve(paper_task("example", f=f), seed)
    assert 0.90 <= metrics["success_occupancy"] <= 0.93
    assert metrics["next_largest_occupancy"] == pytest.approx(0.01, abs=0.002)
    assert metrics["path_reaches_goal"]
    assert metrics["path_length"] == metrics["shortest_length"] == 8
    assert metrics["flow_residual"] < 1e-9
    assert metrics["mean_ratio"] == pytest.approx(1.0, abs=1e-9)
    assert arrays["policy"].sum(axis=1) == pytest.approx(1.0)


@pytest.mark.parametrize("f", ["chi2", "kl"])
@pytest.mark.parametrize("seed", range(20))
def test_mismatched_task_zigzags_along_the_expert_s_diagonal(seed, f):
    arrays, metrics, _ = stage.solve(paper_task("mismatched", f=f), seed)
    path = arrays["path"]
    assert arrays["expert_path"].tolist() == DIAGONAL
    assert set(DIAGONAL) <= set(path.tolist())
    assert metrics["path_length"] == metrics["shortest_length"] == 8
    rows, columns = np.divmod(path, 9)
    assert (np.abs(np.diff(rows)) + np.abs(np.diff(columns)) == 1).all()  # moves the imitator can make
    assert metrics["flow_residual"] < 1e-9


def test_listing_needs_a_leak_where_the_exact_solution_does_not():
    """The paper's untruncated form weights few states; the behaviour policy elsewhere keeps it from success."""
    _, listing, _ = stage.solve(paper_task("example", f="chi2-untruncated"), 0)
    assert listing["success_occupancy"] < 0.75
    assert listing["fallback_states"] > 40


def test_without_noise_a_bent_corridor_is_walked_exactly():
    grid = gridworld.parse_map(MAZE, noise=0.0)
    counts = gridworld.collect(grid, 500, 50, seed=0)
    assert counts.sum() == 25_000
    path = grid.greedy_path(grid.expert_policy(diagonal=False))
    assert len(path) - 1 == grid.distance_to_goal()[grid.starts[0]] == 6


# --- grids ----------------------------------------------------------------------------------------------------------


def test_paper_grid_has_the_official_constants():
    grid = gridworld.paper_grid()
    assert (grid.shape, grid.starts, grid.goals, grid.torus) == ((9, 9), (20,), (60,), True)
    assert grid.successors()[0].tolist() == [72, 9, 8, 1]  # wraps around
    assert grid.successors()[60].tolist() == [60] * 4


@pytest.mark.parametrize("noise", [0.0, 0.1, 1.0])
def test_transition_rows_are_distributions(noise):
    grid = gridworld.parse_map(MAZE, noise=noise)
    assert grid.transition().sum(axis=1) == pytest.approx(1.0)
    row = gridworld.paper_grid(noise=noise).transition()[[20 * 4 + 3]].toarray().ravel()
    assert row[21] == pytest.approx(1 - noise + noise / 4)
    assert row[11] == pytest.approx(noise / 4)


def test_moves_stop_at_walls_and_edges():
    target = gridworld.parse_map("S.\n#G").successors()
    assert target[0].tolist() == [0, 0, 0, 1]
    assert target[1].tolist() == [1, 3, 0, 1]


def test_data_are_seeded_and_follow_the_dynamics():
    grid = gridworld.paper_grid()
    one, again, other = (gridworld.collect(grid, 2000, 50, seed) for seed in (1, 1, 2))
    assert (one != again).nnz == 0
    assert (one != other).nnz > 0
    tried = np.asarray(one.sum(axis=1)).ravel()
    assert tried.sum() == 100_000
    busy = tried > 500
    estimate = one[busy].toarray() / tried[busy, None]
    assert np.abs(estimate - grid.transition()[busy].toarray()).max() < 0.08
    assert one[~np.repeat(np.arange(81) == 60, 4)].sum() < one.sum()  # some episodes end absorbed


def test_episodes_begin_anywhere_only_where_a_walk_cannot_reach():
    near, far = gridworld.paper_grid(9), gridworld.paper_grid(40)
    assert not stage.begins_anywhere(near, Config())
    assert stage.begins_anywhere(far, Config())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("..G", "no start"),
        ("S..", "no goal"),
        ("S#G", "no path"),
        ("", "empty"),
        ("S.x.G", "unknown character 'x'"),
        ("S..\n.G", "line 2 has 2 cells"),
    ],
)
def test_bad_maps_are_refused(text, words):
    with pytest.raises(InputError, match=words):
        gridworld.parse_map(text)


def test_moves_across_the_edge_are_drawn_as_two_halves():
    assert segments(np.array([0, 8]), (9, 9), torus=True) == [(0, 0, -0.5, 0), (8.5, 0, 8, 0)]
    assert segments(np.array([0, 1]), (9, 9), torus=True) == [(0, 0, 1, 0)]


# --- the command ----------------------------------------------------------------------------------------------------


def test_command_writes_artifact_and_picture_then_is_cached(tmp_path):
    out = tmp_path / "example.h5"
    first = succeed("tabular", "example", "--out", out, "--episodes", "2000", "--json").json
    assert first["status"] == "done"
    assert is_ours(tmp_path / "example.png", SOFTWARE)
    arrays = artifacts.load(out, "tabular").arrays
    assert arrays["policy"].shape == (81, 4)
    assert arrays["count"].sum() == 100_000
    again = succeed("tabular", "example", "--out", out, "--episodes", "2000", "--json").json
    assert (again["status"], again["digest"]) == ("cached", first["digest"])
    (tmp_path / "example.png").unlink()
    succeed("tabular", "example", "--out", out, "--episodes", "2000")
    assert (tmp_path / "example.png").exists()  # drawn again from the artifact
    planned = succeed("tabular", "example", "--out", out, "--episodes", "2000", "--gamma", "0.9", "--dry-run", "--json")
    assert planned.json["reason"] == "gamma changed from 0.99 to 0.9"


def test_same_seed_gives_the_same_digest(tmp_path):
    runs = [
        succeed("tabular", "mismatched", "--out", tmp_path / f"{name}.h5", "--seed", seed, "--json").json["digest"]
        for name, seed in (("a", "4"), ("b", "4"), ("c", "5"))
    ]
    assert runs[0] == runs[1] != runs[2]


def test_a_map_of_one_s_own(tmp_path):
    (tmp_path / "maze.txt").write_text(MAZE)
    report = succeed("tabular", tmp_path / "maze.txt", "--out", tmp_path / "maze.h5", "--f", "kl", "--json").json
    assert report["metrics"]["path_reaches_goal"]
    assert report["metrics"]["path_length"] == report["metrics"]["shortest_length"] == 6
    command = ("tabular", tmp_path / "maze.txt", "--out", tmp_path / "maze.h5", "--f", "kl", "--dry-run", "--json")
    assert succeed(*command).json["status"] == "cached"
    wider = MAZE.replace("#S..#.#", "#S....#")
    assert wider != MAZE
    (tmp_path / "maze.txt").write_text(wider)
    assert succeed(*command).json["reason"] == "its source changed"


def write_counts(path, **changes):
    counts = np.zeros((3, 2, 3))
    counts[0, 0, 1], counts[0, 1, 0], counts[1, 0, 2], counts[1, 1, 0], counts[2, :, 2] = 5, 5, 5, 5, 5
    content = {"counts": counts, "initial": np.array([1.0, 0, 0]), "expert": np.array([0, 0, 1.0])} | changes
    with h5py.File(path, "w") as file:
        for name, value in content.items():
            if value is not None:
                file[name] = value
    return counts


def test_counts_of_one_s_own_dense_or_as_columns(tmp_path):
    counts = write_counts(tmp_path / "dense.h5")
    state, action, following = np.nonzero(counts)
    columns = {"state": state, "action": action, "next_state": following, "count": counts[state, action, following]}
    write_counts(tmp_path / "columns.h5", counts=None, **columns)
    metrics = [
        succeed("tabular", tmp_path / f"{name}.h5", "--out", tmp_path / "out" / f"{name}.h5", "--json").json["metrics"]
        for name in ("dense", "columns")
    ]
    assert metrics[0] == metrics[1]
    policy = artifacts.load(tmp_path / "out/dense.h5", "tabular").arrays["policy"]
    assert policy[0, 0] > 0.7
    assert not (tmp_path / "out/dense.png").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"counts": -np.ones((3, 2, 3))}, "negative"),
        ({"counts": np.ones((3, 2, 4))}, "shape"),
        ({"counts": np.ones((3, 6))}, "shape"),
        ({"counts": None}, "neither"),
        ({"expert": np.array([0.5, 0.2, 0.2])}, "sums to 0.9"),
        ({"initial": np.array([0.5, 0.5])}, "shape"),
        ({"expert": None}, "no dataset 'expert'"),
        ({"counts": np.zeros((3, 2, 3))}, "all zero"),
    ],
)
def test_bad_counts_leave_nothing_behind(tmp_path, changes, words):
    write_counts(tmp_path / "bad.h5", **changes)
    assert words in refuse(3, "tabular", tmp_path / "bad.h5", "--out", tmp_path / "out/result.h5")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("code", "arguments", "words"),
    [
        (4, ("example", "--gamma", "1"), "must be below 1"),
        (4, ("example", "--noise", "2"), "noise"),
        (4, ("example", "--size", "2"), "size"),
        (4, ("example", "--f", "tv"), "f = 'tv' is not one of"),
        (2, ("example", "--torus"), "--torus"),
        (3, ("nowhere.txt",), "does not exist"),
        (3, ("example", "--size", "50", "--starts", "start"), "never reach"),
    ],
)
def test_bad_flags_leave_nothing_behind(tmp_path, code, arguments, words):
    assert words in refuse(code, "tabular", *arguments, "--out", tmp_path / "out/result.h5")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("text", "words"), [("..G", "no start"), ("S..", "no goal"), ("S#G", "no path")])
def test_bad_map_files_leave_nothing_behind(tmp_path, text, words):
    (tmp_path / "bad.txt").write_text(text)
    assert words in refuse(3, "tabular", tmp_path / "bad.txt", "--out", tmp_path / "out/result.h5")
    assert not (tmp_path / "out").exists()


def test_a_foreign_picture_is_not_overwritten(tmp_path):
    (tmp_path / "example.png").write_bytes(b"someone's holiday")
    refuse(5, "tabular", "example", "--out", tmp_path / "example.h5")
    assert (tmp_path / "example.png").read_bytes() == b"someone's holiday"
    assert not (tmp_path / "example.h5").exists()
