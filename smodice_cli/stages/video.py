"""A film of the first evaluation episode: GIF with what is installed, MP4 with imageio-ffmpeg."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from smodice_cli import artifacts
from smodice_cli.algos.acting import NumpyPolicy
from smodice_cli.config import EvalConfig
from smodice_cli.console import Progress, console
from smodice_cli.envs import registry, rendering
from smodice_cli.errors import UsageError
from smodice_cli.inspect import output

FRAMES_PER_SECOND = 25
FORMATS = (".gif", ".mp4")


def check(path: Path, force: bool = False) -> None:
    """Refuse, before anything runs, a video that cannot be written, or would replace a file."""
    if path.suffix not in FORMATS:
        raise UsageError(f"--video {path}: the name must end in {' or '.join(FORMATS)}")
    if path.suffix == ".mp4" and importlib.util.find_spec("imageio_ffmpeg") is None:
        raise UsageError("writing MP4 needs imageio-ffmpeg", "pip install 'smodice[video]', or write a .gif")
    output.check(path, path.suffix, force)


def record(policy: Path, path: Path, config: EvalConfig, seed: int) -> None:
    """Film the first of the episodes that `eval` scores with the same settings and seed."""
    artifact = artifacts.load(policy, "policy")
    metrics = artifact.header.metrics
    with registry.explained(metrics["env"]):
        env = registry.make(metrics["env"], render_mode="rgb_array")
    stride = max(1, round(env.metadata.get("render_fps", FRAMES_PER_SECOND) / FRAMES_PER_SECOND))
    frames = _frames(env, NumpyPolicy(artifact.arrays), metrics["absorbing"], config.stochastic, seed, stride)
    path.parent.mkdir(parents=True, exist_ok=True)
    write = _write_gif if path.suffix == ".gif" else _write_mp4
    drawn = registry.explained(metrics["env"])
    with drawn, artifacts.atomic(path) as temporary, console.progress("video", 0, unit="frame") as bar:
        write(temporary, _counted(frames, bar))


def _counted(frames: Iterator[np.ndarray], bar: Progress) -> Iterator[np.ndarray]:
    for number, frame in enumerate(frames, 1):
        yield frame
        bar.update(number)


def _write_gif(path: Path, frames: Iterator[np.ndarray]) -> None:
    """At half the size in each direction: a GIF of full frames is slow to make and large."""
    import imageio.v2 as imageio

    writer: Any = imageio.get_writer(path, "GIF", "I", duration=1000 / FRAMES_PER_SECOND, loop=0)  # type: ignore[arg-type]
    with writer:
        for frame in frames:
            writer.append_data(frame[::2, ::2])


def _write_mp4(path: Path, frames: Iterator[np.ndarray]) -> None:
    """H.264 through the ffmpeg that imageio-ffmpeg brings; `path` has no ending to read the container from."""
    import imageio_ffmpeg

    first = next(frames)
    size = (first.shape[1], first.shape[0])
    stream = imageio_ffmpeg.write_frames(str(path), size, fps=FRAMES_PER_SECOND, output_params=["-f", "mp4"])
    stream.send(None)
    try:
        for frame in itertools.chain([first], frames):
            stream.send(np.ascontiguousarray(frame))
    finally:
        stream.close()


def _frames(
    env: Any, policy: NumpyPolicy, absorbing: bool, stochastic: bool, seed: int, stride: int
) -> Iterator[np.ndarray]:
    """Every `stride`-th picture of episode 0, seeded as `eval` seeds it."""
    rng = np.random.default_rng([seed, 0])
    observation, _ = env.reset(seed=int(rng.integers(2**31)))
    picture, close = rendering.camera_of(env)
    try:
        over, step = False, 0
        while not over:
            if step % stride == 0:
                yield picture()
            state = np.append(observation, 0.0) if absorbing else observation
            observation, _, terminated, truncated, _ = env.step(policy.act(state, rng if stochastic else None))
            over, step = terminated or truncated, step + 1
        yield picture()
    finally:
        close()
