"""D4RL's tables, and downloads of its files: resumed, checked, whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from urllib.response import addinfourl

import h5py
import numpy as np
import pytest
from conftest import listing, refuse, succeed
from recordings import HOPPER, write_d4rl

from smodice_cli import envs, files, sources
from smodice_cli.envs import d4rl_tables
from smodice_cli.errors import InputError
from smodice_cli.sources import d4rl

ID = "hopper-medium-v2"
NAME = "hopper_medium-v2.hdf5"


def fetch() -> Path:
    path = sources.parse(ID).file()
    assert path is not None
    return path


def test_paper_tasks_are_known_and_keep_d4rls_file_names() -> None:
    urls, _ = d4rl_tables.own_tables()
    assert urls["hopper-random-v2"].endswith("/gym_mujoco_v2/hopper_random-v2.hdf5")
    assert urls["antmaze-umaze-v2"].endswith("_sparse_fixed.hdf5")
    assert {"kitchen-mixed-v0", "maze2d-umaze-v1", "ant-medium-expert-v2"} <= set(urls)


def test_our_tables_equal_the_genuine_packages() -> None:
    genuine = d4rl_tables.genuine_tables()
    if genuine is None:
        pytest.skip("d4rl is not installed (make setup-d4rl)")
    urls, scores = genuine
    our_urls, our_scores = d4rl_tables.own_tables()
    assert {name: urls[name] for name in our_urls} == our_urls
    assert {name: scores[name] for name in our_urls} == our_scores


def test_normalized_score_is_the_genuine_one(tmp_path: Path) -> None:
    if d4rl_tables.genuine_tables() is None:
        pytest.skip("d4rl is not installed (make setup-d4rl)")
    code = "import d4rl; print(*(d4rl.get_normalized_score(f'{n}-expert-v2', 1234.5) for n in %r))"
    names = ["hopper", "walker2d", "halfcheetah", "ant"]
    variables = {"D4RL_SUPPRESS_IMPORT_ERROR": "1", "D4RL_DATASET_DIR": str(tmp_path)}
    process = subprocess.run(
        [sys.executable, "-c", code % names], env=os.environ | variables, capture_output=True, text=True, check=True
    )
    theirs = [100 * float(score) for score in process.stdout.split()]
    assert theirs == pytest.approx([envs.find(name).normalized(1234.5) for name in names])


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
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == [NAME, f"{NAME}.sha256"]
    assert len(server.requests) == 1
    assert succeed(*arguments, "--json").json["status"] == "cached"


def test_half_a_download_is_kept_and_resumed(server: Server, tmp_path: Path) -> None:
    server.drop_after = len(server.content) // 5
    with pytest.raises(InputError, match=r"stopped after .* MB") as caught:
        fetch()
    assert "same command again" in caught.value.hint
    part = tmp_path / "cache" / f"{NAME}.part"
    assert [path.name for path in part.parent.iterdir()] == [part.name]
    have = part.stat().st_size
    assert 0 < have < len(server.content)
    server.drop_after, server.requests = None, []
    assert fetch().read_bytes() == server.content
    assert server.requests == [f"bytes={have}-"]
    assert not part.exists()


def test_dropped_connection_is_taken_up_again_in_the_same_run(server: Server) -> None:
    server.drop_after = 2 * len(server.content) // 3
    assert fetch().read_bytes() == server.content
    assert len(server.requests) == 2


def test_server_without_ranges_starts_anew(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / f"{NAME}.part").write_bytes(b"something else")
    assert fetch().read_bytes() == server.content


def test_part_that_is_longer_than_the_file_is_thrown_away(server: Server, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / f"{NAME}.part").write_bytes(b"x" * (len(server.content) + 10))
    assert fetch().read_bytes() == server.content


def test_complete_part_needs_no_more_bytes(server: Server, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / f"{NAME}.part").write_bytes(server.content)
    assert fetch().read_bytes() == server.content


@pytest.mark.parametrize("content", [b"<html>sign in to this network</html>", b""])
def test_wrong_content_is_not_kept(server: Server, tmp_path: Path, content: bytes) -> None:
    server.content = content
    with pytest.raises(InputError, match="no D4RL file"):
        fetch()
    assert not (tmp_path / "cache").exists()


def test_hdf5_without_the_columns_is_not_kept(server: Server, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "other.hdf5", "w") as file:
        file["observations"] = np.zeros((3, 2))
    server.content = (tmp_path / "other.hdf5").read_bytes()
    with pytest.raises(InputError, match="it has no 'actions'"):
        fetch()
    assert not (tmp_path / "cache").exists()


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


def test_a_download_of_another_process_is_not_repeated(server: Server, tmp_path: Path) -> None:
    with (
        files.locked(tmp_path / "cache" / NAME, lambda _: None),
        pytest.raises(InputError, match=f"{NAME} is being downloaded by another process"),
    ):
        fetch()
    assert not server.requests
    assert not listing(tmp_path)


def test_a_file_that_is_not_what_it_was_at_first_use_is_refused(server: Server, tmp_path: Path) -> None:
    arguments = (
        "build-dataset",
        "--env",
        HOPPER,
        "--offline",
        ID,
        "--expert",
        f"{ID}#traj=0",
        "--out",
        tmp_path / "d.h5",
    )
    assert "SHA-256" in succeed(*arguments).stderr, "the user sees what is trusted"
    cached = tmp_path / "cache" / NAME
    whole = cached.read_bytes()
    cached.write_bytes(whole + b"more")
    assert "is not what it was when it was first used" in refuse(3, *arguments)
    cached.unlink()
    server.content = write_d4rl(tmp_path / "other.hdf5", scale=2.0).read_bytes()
    assert "is not what it was when it was first used" in refuse(3, *arguments), "nor is what the server sends now"
    server.content = whole
    (tmp_path / "cache" / f"{NAME}.part").unlink()
    assert succeed(*arguments, "--json").json["status"] == "cached"


def test_downloads_are_encrypted_where_the_server_can() -> None:
    assert d4rl.addresses("http://host.example/x.hdf5") == ["https://host.example/x.hdf5", "http://host.example/x.hdf5"]
    assert d4rl.addresses("https://host.example/x.hdf5") == ["https://host.example/x.hdf5"]


@pytest.mark.parametrize("length", ["²", "-5", "9" * 5000])
def test_an_odd_content_length_is_no_length(server: Server, tmp_path: Path, length: str) -> None:
    """The answer is a made-up one: http.server itself refuses to send such a header."""
    body, headers = BytesIO(b"abc"), Message()
    headers["Content-Length"] = length
    answer = addinfourl(body, headers, "", 200)
    with open(tmp_path / "part", "ab") as file:
        assert d4rl._receive(answer, file, "x") is None
