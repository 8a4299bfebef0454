"""Films of an evaluation: what they show where MuJoCo can draw, and the one sentence where it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import imageio.v2 as imageio
import numpy as np
import pytest
from conftest import can_render, refuse, succeed


@pytest.mark.skipif(not can_render(), reason="MuJoCo itself cannot render on this machine")
@pytest.mark.parametrize(("ending", "size"), [("gif", 240), ("mp4", 480)])
def test_a_film_shows_the_episode(run: Path, tmp_path: Path, ending: str, size: int) -> None:
    if ending == "mp4":
        pytest.importorskip("imageio_ffmpeg", reason="the extra [video] is not installed")
    film = tmp_path / "new" / f"film.{ending}"
    succeed("eval", "--policy", run / "policy.safetensors", "--episodes", "1", "--threads", "1", "--video", film)
    frames = [np.asarray(frame)[..., :3] for frame in imageio.get_reader(film)]
    assert len(frames) > 5
    assert {frame.shape for frame in frames} == {(size, size, 3)}
    assert min(frame.std() for frame in frames) > 10, "a picture is blank"
    assert (frames[0] != frames[-1]).any(), "nothing moves"


@pytest.mark.skipif(not can_render(), reason="MuJoCo itself cannot render on this machine")
def test_a_film_of_several_episodes_says_what_was_written(run: Path, tmp_path: Path) -> None:
    command = ("eval", "--policy", run / "policy.safetensors", "--episodes", "2", "--threads", "1")
    lengths = []
    for count in (1, 2):
        film = tmp_path / f"{count}.gif"
        said = succeed(*command, "--video", film, "--video-episodes", str(count)).stdout
        assert f"film  {film}" in said
        assert ("the first episode" if count == 1 else "the first 2 episodes") in said
        lengths.append(len(list(imageio.get_reader(film))))
    assert lengths[1] > lengths[0]


def test_the_number_of_episodes_goes_with_a_film(run: Path) -> None:
    assert "goes with --video" in refuse(2, "eval", "--policy", run / "policy.safetensors", "--video-episodes", "2")


@pytest.mark.parametrize("backend", ["disable", "glfw", "bogus"])  # not drawing at all; for screens alone; unknown
def test_a_machine_that_cannot_draw_says_so_in_one_sentence(run: Path, tmp_path: Path, backend: str) -> None:
    film, scores = tmp_path / "film.gif", tmp_path / "scores.json"
    screens = ("DISPLAY", "WAYLAND_DISPLAY")
    environment = {k: v for k, v in os.environ.items() if k not in screens} | {"MUJOCO_GL": backend}
    command = ["eval", "--policy", run / "policy.safetensors", "--episodes", "1", "--threads", "1", "--out", scores]
    smodice = [sys.executable, "-m", "smodice_cli", *map(str, command)]
    done = subprocess.run([*smodice, "--video", str(film)], env=environment, capture_output=True, text=True)
    assert done.returncode == 4, done.stderr
    (sentence,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert sentence.startswith("error: cannot render: no working OpenGL backend")
    assert "hint: install EGL (Debian, Ubuntu: apt-get install libegl1 libgl1)" in done.stderr
    assert "Traceback" not in done.stderr
    assert not film.exists()
    assert scores.exists(), "what needs no picture was done"
