"""Where data come from: D4RL's files and server, Minari's storage, own files, simulation; and bad input to each."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import h5py
import numpy as np
import pytest
from conftest import listing, refuse, smodice, succeed
from safetensors.numpy import save_file

from smodice_cli import artifacts
from smodice_cli.algos.acting import POLICY_TENSORS
from smodice_cli.config import DatasetConfig
from smodice_cli.data import Transitions, concatenate
from smodice_cli.envs import d4rl_tables, registry
from smodice_cli.errors import ConfigError, InputError, UsageError
from smodice_cli.recipes import read_recipe
from smodice_cli.sources import d4rl, minari, recorded, simulate, specs
from smodice_cli.stages.build_dataset import expert_return

POINT, HOPPER = "pointmass-4direction", "hopper"
ID = "hopper-medium-v2"
NAME = "hopper_medium-v2.hdf5"


def write_d4rl(path: Path, *, env: str = HOPPER, episodes: int = 4, length: int = 10, scale: float = 1.0) -> Path:
    """A small file in D4RL's layout; rewards are `scale` in every step."""
    spec, rows = registry.spec(env), episodes * length
    rng = np.random.default_rng(episodes * 100 + length)
    states = rng.normal(size=(rows + 1, spec.obs_dim)).astype(np.float32)
    with h5py.File(path, "w") as file:
        file["observations"], file["next_observations"] = states[:-1], states[1:]
        file["actions"] = rng.uniform(-1, 1, (rows, spec.act_dim)).astype(np.float32)
        file["rewards"] = np.full(rows, scale, np.float32)
        file["terminals"] = np.zeros(rows, bool)
        file["timeouts"] = np.arange(rows) % length == length - 1
    return path


def write_minari(path: Path, lengths: list[int], *, goal: bool = False, width: int = 4, act: int = 2) -> Path:
    """Minari's HDF5 layout; episode k's states start with k, so that their order shows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for number, length in enumerate(lengths):
            group = file.create_group(f"episode_{number}")
            states = rng.normal(size=(length + 1, width))
            states[:, 0] = number
            if goal:
                group["observations/observation"] = states
                group["observations/achieved_goal"] = states[:, :2]
                group["observations/desired_goal"] = np.ones((length + 1, 2))
            else:
                group["observations"] = states
            group["actions"] = rng.uniform(-1, 1, (length, act))
            group["rewards"] = np.ones(length)
            last = np.arange(length) == length - 1
            group["terminations"], group["truncations"] = last & (number % 2 == 0), last & (number % 2 == 1)
    return path


def rows_of(text: str, env: str, workers: int = 1, seed: int = 0) -> Transitions:
    return concatenate(list(specs.episodes(specs.parse(text), env, seed, workers)))


# --- source texts -----------------------------------------------------------------------------------------------------


def test_bare_d4rl_id_means_the_same_as_with_its_scheme() -> None:
    bare, full = specs.parse("hopper-random-v2#200"), specs.parse("d4rl:hopper-random-v2#200")
    assert (bare.scheme, bare.name, bare.selection, bare.count) == (full.scheme, full.name, "episodes", 200)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("hopper-ramdom-v2", "hopper-random-v2"),
        ("d4rl:hopper-expertv2", "hopper-expert-v2"),
        ("d4lr:hopper-expert-v2", "d4rl"),
        ("sim:hoper-random#10", "hopper-random"),
        ("minari:mujoco/hopper/expert", "minari:mujoco/hopper/expert-v0"),
    ],
)
def test_unknown_names_get_the_nearest_ones(text: str, hint: str, tmp_path: Path) -> None:
    outcome = smodice("build-dataset", "--env", HOPPER, "--offline", text, "--expert", text, "--out", tmp_path / "d.h5")
    assert outcome.code == 2
    assert hint in outcome.stderr
    assert not listing(tmp_path)


# --- D4RL -------------------------------------------------------------------------------------------------------------


def test_paper_tasks_are_known_and_keep_d4rls_file_names() -> None:
    urls = d4rl_tables.own_urls()
    assert urls["hopper-random-v2"].endswith("/gym_mujoco_v2/hopper_random-v2.hdf5")
    assert urls["antmaze-umaze-v2"].endswith("_sparse_fixed.hdf5")
    assert {"kitchen-mixed-v0", "maze2d-umaze-v1", "ant-medium-expert-v2"} <= set(urls)


def test_our_tables_equal_the_genuine_packages() -> None:
    genuine = d4rl_tables.genuine_tables()
    if genuine is None:
        pytest.skip("d4rl is not installed (make setup-d4rl)")
    urls, scores = genuine
    ours = d4rl_tables.own_urls()
    assert {name: urls[name] for name in ours} == ours
    assert {name: scores[name] for name in ours} == {name: d4rl_tables.own_scores(name) for name in ours}


def test_normalized_score_is_the_genuine_one(tmp_path: Path) -> None:
    if d4rl_tables.genuine_tables() is None:
        pytest.skip("d4rl is not installed (make setup-d4rl)")
    code = "import d4rl; print(*(d4rl.get_normalized_score(f'{n}-expert-v2', 1234.5) for n in %r))"
    names = list(d4rl_tables.BODIES)
    variables = {"D4RL_SUPPRESS_IMPORT_ERROR": "1", "D4RL_DATASET_DIR": str(tmp_path)}
    process = subprocess.run(
        [sys.executable, "-c", code % names], env=os.environ | variables, capture_output=True, text=True, check=True
    )
    theirs = [100 * float(score) for score in process.stdout.split()]
    assert theirs == pytest.approx([registry.spec(name).normalized(1234.5) for name in names])


def test_reading_the_genuine_tables_makes_no_folder_and_prints_nothing(tmp_path: Path) -> None:
    code = "from smodice_cli.envs import d4rl_tables as t; t.genuine_tables(); t.urls()"
    variables = {name: value for name, value in os.environ.items() if name != "D4RL_DATASET_DIR"}
    process = subprocess.run(
        [sys.executable, "-c", code],
        env=variables | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout + process.stderr == ""
    assert not list(tmp_path.iterdir())


class Server(ThreadingHTTPServer):
    """A web server on loopback whose misbehaviour a test chooses."""

    content = b""
    drop_after: int | None = None  # bytes of each answer, after which the connection ends
    ranges = True
    requests: list[str]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range", "")
        self.server.requests.append(wanted)
        if self.path.endswith("missing.hdf5"):
            self.send_error(404)
            return
        content = self.server.content
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.server.ranges else 0
        if start >= len(content) > 0:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        stop = len(content) if self.server.drop_after is None else start + self.server.drop_after
        self.wfile.write(content[start:stop])

    def log_message(self, *_: object) -> None:
        """Nothing on the terminal."""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server that holds one D4RL file, and the cache folder (not made yet) it is to be downloaded into."""
    with Server(("127.0.0.1", 0), Handler) as server:
        server.requests = []
        server.content = write_d4rl(tmp_path / "original.hdf5").read_bytes()
        (tmp_path / "original.hdf5").unlink()
        base = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(
            d4rl_tables, "urls", lambda: {ID: f"{base}/{NAME}", "ant-medium-v2": f"{base}/missing.hdf5"}
        )
        monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path / "cache"))
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_downloaded_file_is_the_servers_and_is_downloaded_once(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "d.h5"
    arguments = ("build-dataset", "--env", HOPPER, "--offline", ID, "--expert", f"d4rl:{ID}#traj=0", "--out", out)
    succeed(*arguments)
    assert (tmp_path / "cache" / NAME).read_bytes() == server.content
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [NAME]
    assert len(server.requests) == 1
    assert succeed(*arguments, "--json").json["status"] == "cached"


def test_half_a_download_is_kept_and_resumed(server: Server, tmp_path: Path) -> None:
    server.drop_after = len(server.content) // 5
    with pytest.raises(InputError, match=r"stopped after .* MB") as caught:
        d4rl.fetch(ID)
    assert "same command again" in caught.value.hint
    part = tmp_path / "cache" / f"{NAME}.part"
    assert [path.name for path in part.parent.iterdir()] == [part.name]
    have = part.stat().st_size
    assert 0 < have < len(server.content)
    server.drop_after, server.requests = None, []
    assert d4rl.fetch(ID).read_bytes() == server.content
    assert server.requests == [f"bytes={have}-"]
    assert not part.exists()


def test_dropped_connection_is_taken_up_again_in_the_same_run(server: Server) -> None:
    server.drop_after = 2 * len(server.content) // 3
    assert d4rl.fetch(ID).read_bytes() == server.content
    assert len(server.requests) == 2


def test_server_without_ranges_starts_anew(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / f"{NAME}.part").write_bytes(b"something else")
    assert d4rl.fetch(ID).read_bytes() == server.content


def test_part_that_is_longer_than_the_file_is_thrown_away(server: Server, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / f"{NAME}.part").write_bytes(b"x" * (len(server.content) + 10))
    assert d4rl.fetch(ID).read_bytes() == server.content


def test_complete_part_needs_no_more_bytes(server: Server, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / f"{NAME}.part").write_bytes(server.content)
    assert d4rl.fetch(ID).read_bytes() == server.content


@pytest.mark.parametrize("content", [b"<html>sign in to this network</html>", b""])
def test_wrong_content_is_not_kept(server: Server, tmp_path: Path, content: bytes) -> None:
    server.content = content
    with pytest.raises(InputError, match="no D4RL file"):
        d4rl.fetch(ID)
    assert not list((tmp_path / "cache").iterdir())


def test_hdf5_without_the_columns_is_not_kept(server: Server, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "other.hdf5", "w") as file:
        file["observations"] = np.zeros((3, 2))
    server.content = (tmp_path / "other.hdf5").read_bytes()
    with pytest.raises(InputError, match="it has no 'actions'"):
        d4rl.fetch(ID)
    assert not list((tmp_path / "cache").iterdir())


def test_missing_file_on_the_server_leaves_nothing_behind(server: Server, tmp_path: Path) -> None:
    before = listing(tmp_path)
    sentence = refuse(
        3, "build-dataset", "--env", "ant", "--offline", "ant-medium-v2", "--expert", "ant-medium-v2#traj=0",
        "--out", tmp_path / "run" / "d.h5",
    )  # fmt: skip
    assert "404" in sentence
    assert listing(tmp_path) == before


def test_without_network_one_sentence_says_which_file_goes_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(d4rl_tables, "urls", lambda: {ID: f"http://127.0.0.1:9/{NAME}"})
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    sentence = refuse(
        3, "build-dataset", "--env", HOPPER, "--offline", ID, "--expert", f"{ID}#traj=0", "--out", tmp_path / "d.h5"
    )
    assert f"put {NAME} into {tmp_path / 'cache'}" in sentence
    assert not listing(tmp_path)


def test_dry_run_downloads_nothing(server: Server, tmp_path: Path) -> None:
    arguments = ("--env", HOPPER, "--offline", ID, "--expert", f"{ID}#traj=0", "--out", tmp_path / "d.h5")
    assert succeed("build-dataset", *arguments, "--dry-run", "--json").json["status"] == "would run"
    assert not server.requests
    assert not listing(tmp_path)


# --- Minari -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def minari_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "minari"
    root.mkdir()
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(root))
    return root


def test_minari_episodes_come_in_the_order_of_their_numbers(minari_root: Path) -> None:
    write_minari(minari_root / "mine/point-v0" / minari.DATA, [3] * 12)
    block = rows_of("minari:mine/point-v0", POINT)
    np.testing.assert_array_equal(block.observations[::3, 0], np.arange(12))
    assert block.episodes == 12


def test_minari_next_observations_are_the_following_ones(minari_root: Path) -> None:
    path = write_minari(minari_root / "mine/point-v0" / minari.DATA, [4, 5])
    block = rows_of("minari:mine/point-v0#traj=1", POINT)
    with h5py.File(path) as file:
        states = np.float32(file["episode_1/observations"])
    np.testing.assert_array_equal(block.observations, states[:-1])
    np.testing.assert_array_equal(block.next_observations, states[1:])
    np.testing.assert_array_equal(block.states(), states)
    assert (block.terminals.tolist(), block.timeouts.tolist()) == ([False] * 5, [False] * 4 + [True])


def test_goal_dictionaries_give_the_parts_the_environment_names(tmp_path: Path) -> None:
    path = write_minari(tmp_path / "goal.hdf5", [3, 4], goal=True)
    plain = concatenate(list(recorded.episodes(path, 200)))
    assert plain.observations.shape == (7, 4)
    joined = concatenate(list(recorded.episodes(path, 200, parts=("achieved_goal", "observation"))))
    np.testing.assert_array_equal(joined.observations[:, 2:], plain.observations)
    assert recorded.widths(path, ("achieved_goal", "observation")) == (6, 2)
    with pytest.raises(InputError, match=r"without 'camera' \(it has: achieved_goal, desired_goal, observation\)"):
        list(recorded.episodes(path, 200, parts=("camera",)))


def test_genuine_minari_data_set_reads_back(minari_root: Path) -> None:
    package = pytest.importorskip("minari")
    import gymnasium
    from minari.data_collector.episode_buffer import EpisodeBuffer

    rng = np.random.default_rng(0)
    lengths = [5, 7, 6]
    buffers = [
        EpisodeBuffer(
            id=number,
            observations=rng.normal(size=(length + 1, 4)),
            actions=rng.uniform(-1, 1, (length, 2)),
            rewards=[1.0] * length,
            terminations=[False] * (length - 1) + [True],
            truncations=[False] * length,
            infos={},
        )
        for number, length in enumerate(lengths)
    ]
    box = gymnasium.spaces.Box
    with pytest.warns(UserWarning, match="is set to None"):
        package.create_dataset_from_buffers(
            "mine/genuine-v0", buffers, observation_space=box(-9, 9, (4,)), action_space=box(-1, 1, (2,))
        )
    block = rows_of("minari:mine/genuine-v0", POINT)
    assert np.diff(block.offsets).tolist() == lengths
    np.testing.assert_allclose(block.observations[5:12], np.float32(buffers[1].observations)[:-1])


def test_absent_minari_set_without_the_package_names_the_file(
    minari_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(InputError, match="needs the minari package") as caught:
        minari.fetch("mujoco/hopper/expert-v0")
    assert str(minari_root / "mujoco/hopper/expert-v0" / minari.DATA) in caught.value.hint


@pytest.mark.parametrize("works", [True, False])
def test_remote_minari_set_arrives_whole_or_not_at_all(
    minari_root: Path, monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    package = pytest.importorskip("minari")

    def download(name: str) -> None:
        place = Path(os.environ["MINARI_DATASETS_PATH"]) / name / minari.DATA
        write_minari(place, [3, 3])
        if not works:
            raise ConnectionError("the line went dead")

    monkeypatch.setattr(package, "download_dataset", download)
    if works:
        assert minari.fetch("mine/point-v0") == minari_root / "mine/point-v0" / minari.DATA
        assert minari.local_ids() == ["mine/point-v0"]
    else:
        with pytest.raises(InputError, match="the line went dead"):
            minari.fetch("mine/point-v0")
        assert not list(minari_root.iterdir())
    assert os.environ["MINARI_DATASETS_PATH"] == str(minari_root)


def test_minari_ids_stay_inside_their_folder() -> None:
    for text in ("../x-v0", "/etc/x-v0", "a//b-v0", "x"):
        with pytest.raises(UsageError):
            minari.check_id(text, f"minari:{text}")


# --- own files --------------------------------------------------------------------------------------------------------


def test_npz_and_hdf5_of_the_same_columns_give_the_same_rows(tmp_path: Path) -> None:
    path = write_d4rl(tmp_path / "log.hdf5")
    with h5py.File(path) as file:
        np.savez(tmp_path / "log.npz", **{name: file[name][:] for name in file})
    one, two = (rows_of(f"file:{tmp_path}/log.{ending}", HOPPER) for ending in ("hdf5", "npz"))
    for name in ("observations", "actions", "rewards", "next_observations", "timeouts", "offsets"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))


def test_npz_with_pickles_inside_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "log.npz", observations=np.array([{"a": 1}], dtype=object), actions=np.zeros((1, 3)))
    with pytest.raises(InputError, match=r"not an \.npz file of numbers"):
        rows_of(f"file:{tmp_path}/log.npz", HOPPER)


def test_compressed_chunks_read_like_plain_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = write_d4rl(tmp_path / "plain.hdf5", episodes=40, length=37)
    for name, options in {"gzip": {}, "shuffled": {"shuffle": True}, "checked": {"fletcher32": True}}.items():
        with h5py.File(plain) as source, h5py.File(tmp_path / f"{name}.hdf5", "w") as target:
            for column in source:
                data = source[column][:]
                chunks = (100, 4)[: data.ndim] if data.ndim == 1 or data.shape[1] > 3 else (100, 3)
                target.create_dataset(column, data=data, chunks=chunks, compression="gzip", **options)
    monkeypatch.setattr(recorded, "BLOCK_ROWS", 150)
    blocks = concatenate(list(recorded.episodes(plain, 1000)))
    for name in ("gzip", "shuffled", "checked"):
        read = concatenate(list(recorded.episodes(tmp_path / f"{name}.hdf5", 1000)))
        for column in ("observations", "actions", "rewards", "next_observations", "timeouts", "offsets"):
            np.testing.assert_array_equal(getattr(read, column), getattr(blocks, column))


def test_drawn_states_are_the_files_own_and_no_more_than_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_d4rl(tmp_path / "log.hdf5", episodes=30, length=20)
    monkeypatch.setattr(recorded, "BLOCK_ROWS", 100)
    found = specs.expert_states(specs.parse(f"file:{path}#states=50"), HOPPER, 0, 1)
    drawn = found.states
    everything = rows_of(f"file:{path}", HOPPER).states()
    assert drawn.shape == (50, 11)
    assert not found.returns
    assert not len(found.lengths)
    assert len({state.tobytes() for state in drawn} & {state.tobytes() for state in everything}) == 50
    with pytest.raises(InputError, match="has only 630 such states"):
        specs.expert_states(specs.parse(f"file:{path}#states=5000"), HOPPER, 0, 1)


# --- simulation -------------------------------------------------------------------------------------------------------


def policy_file(path: Path, env: str, header_env: str = "") -> Path:
    """A policy of the right shapes for `env`; with `header_env` it says that it was trained there."""
    spec, rng = registry.spec(env), np.random.default_rng(0)
    shapes = {
        "normaliser.mean": (spec.obs_dim,), "normaliser.std": (spec.obs_dim,),
        "body.0.weight": (8, spec.obs_dim), "body.0.bias": (8,), "body.2.weight": (8, 8), "body.2.bias": (8,),
        "mean.weight": (spec.act_dim, 8), "mean.bias": (spec.act_dim,),
        "log_std.weight": (spec.act_dim, 8), "log_std.bias": (spec.act_dim,),
    }  # fmt: skip
    tensors = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    tensors["normaliser.std"] = np.ones(spec.obs_dim, np.float32)
    tensors |= {"action_low": -np.ones(spec.act_dim, np.float32), "action_high": np.ones(spec.act_dim, np.float32)}
    assert set(tensors) == set(POLICY_TENSORS)
    if not header_env:
        save_file(tensors, path)
        return path
    import torch

    header = artifacts.Header("policy", "train-policy", {}, 0, metrics={"env": header_env, "absorbing": False})
    artifacts.write_safetensors(path, header, {name: torch.from_numpy(array) for name, array in tensors.items()})
    return path


@pytest.mark.parametrize("who", ["hopper-random", "hopper@policy"])
def test_any_number_of_workers_gives_the_same_bytes(who: str, tmp_path: Path) -> None:
    name = who.replace("policy", str(policy_file(tmp_path / "p.safetensors", HOPPER)))
    one, two = rows_of(f"sim:{name}#700", HOPPER, 1), rows_of(f"sim:{name}#700", HOPPER, 3)
    for column in ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts", "offsets"):
        assert getattr(one, column).tobytes() == getattr(two, column).tobytes()
    assert one.rows == 700


def test_single_trajectory_is_the_one_of_that_number() -> None:
    first = rows_of("sim:hopper-random#episodes=12", HOPPER)
    tenth = rows_of("sim:hopper-random#traj=10", HOPPER)
    np.testing.assert_array_equal(tenth.observations, first.take(10, 11).observations)
    assert first.episodes == 12


def test_simulated_data_replay_in_a_fresh_environment() -> None:
    block = rows_of("sim:hopper-random#episodes=2", HOPPER)
    again = rows_of("sim:hopper-random#episodes=2", HOPPER)
    np.testing.assert_array_equal(block.next_observations, again.next_observations)
    assert not np.array_equal(block.observations, rows_of("sim:hopper-random#episodes=2", HOPPER, seed=1).observations)


@pytest.mark.parametrize(
    ("made_for", "header", "message"),
    [("walker2d", "", "takes 17 observations"), ("halfcheetah", "halfcheetah", "trained for halfcheetah, not for")],
)
def test_policy_for_another_body_is_refused_before_any_process_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_for: str, header: str, message: str
) -> None:
    policy = policy_file(tmp_path / "p.safetensors", made_for, header)
    body = "halfcheetah-short" if header else HOPPER

    def forbidden(*_: object) -> Iterator[Transitions]:
        raise AssertionError("a process was about to start")

    monkeypatch.setattr(simulate, "ordered_map", forbidden)
    before = listing(tmp_path)
    sentence = refuse(
        3, "build-dataset", "--env", body, "--offline", f"sim:{body}-random#100",
        "--expert", f"sim:{body}@{policy}#traj=0", "--out", tmp_path / "run" / "d.h5",
    )  # fmt: skip
    assert message in sentence
    assert listing(tmp_path) == before


def test_a_changed_policy_makes_the_dataset_anew(tmp_path: Path) -> None:
    policy, out = tmp_path / "p.safetensors", tmp_path / "d.h5"
    arguments = ("--env", HOPPER, "--offline", f"sim:hopper@{policy}#200", "--expert", f"sim:hopper@{policy}#traj=0")
    policy_file(policy, HOPPER, HOPPER)
    succeed("build-dataset", *arguments, "--out", out)
    assert succeed("build-dataset", *arguments, "--out", out, "--json").json["status"] == "cached"
    policy_file(policy, HOPPER)
    plan = succeed("build-dataset", *arguments, "--out", out, "--dry-run", "--json").json
    assert plan["status"] == "would run"
    assert "changed" in plan["reason"]


# --- wrong data -------------------------------------------------------------------------------------------------------


def wrong_environment(folder: Path) -> tuple[list[str], str]:
    path = write_d4rl(folder / "log.hdf5", env="walker2d")
    return ["--offline", f"file:{path}", "--expert", f"file:{path}#traj=0"], "observations have 17 dimensions"


def other_body(folder: Path) -> tuple[list[str], str]:
    return ["--offline", "sim:walker2d-random#100", "--expert", "sim:hopper-random#traj=0"], "acts in walker2d"


def expert_of_other_width(folder: Path) -> tuple[list[str], str]:
    return ["--offline", "sim:hopper-random#100", "--expert", "sim:walker2d-random#traj=0"], "17 dimensions"


def index_out_of_range(folder: Path) -> tuple[list[str], str]:
    path = write_d4rl(folder / "log.hdf5")
    return ["--offline", f"file:{path}", "--expert", f"file:{path}#traj=4"], "has only 4 trajectories (counted from 0)"


def too_many(folder: Path) -> tuple[list[str], str]:
    path = write_d4rl(folder / "log.hdf5")
    return ["--offline", f"file:{path}#9", "--expert", f"file:{path}#traj=0"], "has only 4 trajectories"


def cut_short(folder: Path) -> tuple[list[str], str]:
    path = write_d4rl(folder / "log.hdf5", episodes=100)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return ["--offline", f"file:{path}", "--expert", f"file:{path}#traj=0"], "cut short"


def no_policy(folder: Path) -> tuple[list[str], str]:
    return ["--offline", "sim:hopper-random#100", "--expert", f"sim:hopper@{folder}/p#traj=0"], "does not exist"


@pytest.mark.parametrize(
    "case",
    [wrong_environment, other_body, expert_of_other_width, index_out_of_range, too_many, cut_short, no_policy],
    ids=lambda case: case.__name__,
)
def test_bad_data_get_one_sentence_and_leave_nothing(
    case: Callable[[Path], tuple[list[str], str]], tmp_path: Path
) -> None:
    arguments, message = case(tmp_path)
    before = listing(tmp_path)
    assert message in refuse(3, "build-dataset", "--env", HOPPER, *arguments, "--out", tmp_path / "run" / "d.h5")
    assert listing(tmp_path) == before


# --- the expert's return ----------------------------------------------------------------------------------------------


def source(origin: str, episodes: int, mean: float) -> dict[str, object]:
    return {"label": origin, "origin": origin, "rows": 10 * episodes, "episodes": episodes, "mean_return": mean}


@pytest.mark.parametrize(
    ("offline", "demonstrated", "expected"),
    [
        # One trajectory is noisy: the 200 offline ones of the same expert count instead.
        ([source("e", 200, 3500), source("r", 50000, 18)], [source("e", 1, 3700)], 3500),
        # Success states or another body's expert: the best of several offline sources stands for the expert.
        ([source("e", 200, 3500), source("r", 50000, 18)], [], 3500),
        # The expert is not among the offline sources.
        ([source("m", 200, 1500), source("r", 50000, 18)], [source("e", 1, 3700)], 3700),
        # A single mixture does not say which of its rows are the expert's.
        ([source("mixed", 600, 0.25)], [], None),
        ([source("mixed", 600, 0.25)], [source("e", 10, 0.9)], 0.9),
    ],
)
def test_expert_return_is_that_of_the_best_source_of_the_imitators_body(
    offline: list[dict[str, object]], demonstrated: list[dict[str, object]], expected: float | None
) -> None:
    assert expert_return(offline, demonstrated) == expected


def test_no_two_sources_have_one_name() -> None:
    texts = ["file:a/log.hdf5", "file:b/log.hdf5", "sim:hopper-random#10", "sim:hopper-random#10", "file:other.npz"]
    found = specs.labels([specs.parse(text) for text in texts])
    expected = ["file:a/log.hdf5", "file:b/log.hdf5", "sim:hopper-random#10 (1)", "sim:hopper-random#10 (2)"]
    assert found == [*expected, "file:other.npz"]


def test_one_trajectory_of_a_mixed_file_has_its_own_return(tmp_path: Path) -> None:
    path = write_d4rl(tmp_path / "mixed.hdf5", scale=5)
    with h5py.File(path, "a") as file:
        rewards = file["rewards"][:]
        rewards[: len(rewards) // 2] = 0
        del file["rewards"]
        file["rewards"] = rewards
    out = ("--out", tmp_path / "d.h5", "--json")
    arguments = ("build-dataset", "--env", HOPPER, "--offline", f"file:{path}", "--expert")
    found = [succeed(*arguments, f"file:{path}#traj={k}", *out).json["metrics"] for k in (0, 2)]
    mean = found[0]["offline"][0]["mean_return"]
    assert found[0]["expert_return"] is None  # no reward: it stands for nothing
    assert found[1]["expert_return"] > mean


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"episode_1/observations": np.ones((5, 3))}, "episode_1 has 3 dimensions of state and 2 of action"),
        ({"episode_1/actions/left": np.ones((4, 1))}, "'actions' is not an array with a row for each step"),
        ({"episode_0/observations": np.float32(3)}, "'observations' is not an array with a row for each step"),
        ({"episode_0/terminations": np.array([1, 0, 1])}, "'terminations' is set before the last step"),
        ({"episode_0/terminations": np.array([0, 0, np.nan])}, "'terminations' must be true or false"),
    ],
)
def test_minari_episodes_that_cannot_be_meant(tmp_path: Path, change: dict[str, np.ndarray], words: str) -> None:
    path = write_minari(tmp_path / "m.hdf5", [3, 4])
    with h5py.File(path, "a") as file:
        for name, value in change.items():
            parts = name.split("/")
            del file["/".join(parts[:2])]
            file[name] = value
    sources = ("--offline", f"file:{path}", "--expert", f"file:{path}", "--out", tmp_path / "d.h5")
    assert words in refuse(3, "build-dataset", "--env", POINT, *sources)


def test_minari_episodes_without_a_step_are_passed_over(tmp_path: Path) -> None:
    path = write_minari(tmp_path / "m.hdf5", [3, 4])
    with h5py.File(path, "a") as file:
        for number, states in ((2, 1), (3, 0)):
            group = file.create_group(f"episode_{number}")
            group["observations"], group["actions"] = np.ones((states, 4)), np.ones((0, 2))
    assert concatenate(list(recorded.episodes(path, 200))).episodes == 2


def test_header_holds_the_return_of_the_offline_experts(tmp_path: Path) -> None:
    good, bad = write_d4rl(tmp_path / "good.hdf5", scale=5), write_d4rl(tmp_path / "bad.hdf5", scale=-1)
    arguments = ("--offline", f"file:{good}", "--offline", f"file:{bad}", "--expert", f"file:{good}#traj=2")
    summary = succeed("build-dataset", "--env", HOPPER, *arguments, "--out", tmp_path / "d.h5", "--json").json
    assert summary["metrics"]["expert_return"] == pytest.approx(50)
    assert [entry["mean_return"] for entry in summary["metrics"]["offline"]] == pytest.approx([50, -10])


# --- recipes ----------------------------------------------------------------------------------------------------------

PIPELINES = Path(__file__).parents[1] / "pipelines"
LOCOMOTION = sorted([*(PIPELINES / "observations").glob("*.toml"), *(PIPELINES / "mismatched").glob("*.toml")])


@pytest.mark.parametrize("path", LOCOMOTION, ids=lambda path: path.stem)
@pytest.mark.parametrize("data", ["", "d4rl"])
def test_recipe_has_the_papers_composition(path: Path, data: str) -> None:
    config = DatasetConfig(**read_recipe(path, data)["dataset"])
    experts, random = (specs.parse(text) for text in config.offline)
    assert experts.count == (100 if config.env == "walker2d" else 200)
    assert experts.selection == "episodes"
    expert = specs.parse(config.expert[0])
    assert (expert.selection, expert.count) == ("traj", 0)
    if data:
        assert (experts.name, random.name) == (f"{config.env}-expert-v2", f"{config.env}-random-v2")
    else:
        assert random.count is not None
        assert 999_000 <= random.count <= 1_000_000
    mismatched = path.parent.name == "mismatched"
    assert expert.name.startswith(path.stem if mismatched else config.env)


def test_unknown_choice_of_data_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no section \[dataset\.d4lr\]"):
        read_recipe(LOCOMOTION[0], "d4lr")


def test_every_make_target_has_its_recipe() -> None:
    rules = (PIPELINES / "rules.mk").read_text()
    named = set(re.findall(r"^(?:OBSERVATIONS|MISMATCHED) := (.*)$", rules, re.M))
    assert {name for line in named for name in line.split()} == {path.stem for path in LOCOMOTION}
