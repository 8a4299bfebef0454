"""A film of the first evaluation episodes: GIF with what is installed, MP4 with imageio-ffmpeg."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from smodice_cli import artifacts, envs, files, rollout
from smodice_cli.algos.acting import NumpyPolicy
from smodice_cli.artifacts import Artifact
from smodice_cli.console import Progress, console, escape
from smodice_cli.envs import rendering
from smodice_cli.errors import UsageError
from smodice_cli.lazy import np
from smodice_cli.views.render import output

FRAMES_PER_SECOND = 25
FORMATS = (".gif", ".mp4")


def check(path: Path, policy: Path | None, config: Any, force: bool = False) -> None:
    """Refuse, before anything runs, a video that cannot be made or written, or would replace a file."""
    if policy and not envs.can_simulate(name := config.env or artifacts.read_header(policy).metrics.get("env", "")):
        raise UsageError(f"--video films the simulator, and {name} has none: its policies are scored on recordings")
    if path.suffix not in FORMATS:
        raise UsageError(f"--video {path}: the name must end in {' or '.join(FORMATS)}")
    if path.suffix == ".mp4" and importlib.util.find_spec("imageio_ffmpeg") is None:
        raise UsageError("writing MP4 needs imageio-ffmpeg", "pip install 'smodice[video]', or write a .gif")
    output.check(path, (path.suffix,), force)


def record(policy: Path, path: Path, config: Any, seed: int, episodes: int = 1) -> str:
    """Film the first of the episodes that `eval` scores with the same settings and seed; says what was written."""
    artifact = artifacts.load(policy, "policy")
    name = config.env or artifact.header.metrics["env"]
    with envs.gymnasium_errors_explained(name):
        env = envs.make(name, render_mode="rgb_array")
    path.parent.mkdir(parents=True, exist_ok=True)
    write = _write_gif if path.suffix == ".gif" else _write_mp4
    drawn = envs.gymnasium_errors_explained(name)
    with drawn, files.atomic(path) as temporary, console.progress("video", 0, unit="frame") as bar:
        shown = _Counted(_frames(env, artifact, config.stochastic, seed, episodes), bar)
        write(temporary, iter(shown))
    seconds, size = shown.count / FRAMES_PER_SECOND, path.stat().st_size / 1e6
    what = "the first episode" if episodes == 1 else f"the first {episodes} episodes"
    return f"film  {escape(str(path))}  {what}, {seconds:.0f} s, {size:.1f} MB"


class _Counted:
    """Frames on their way to a film, counted."""

    def __init__(self, frames: Iterator[np.ndarray], bar: Progress) -> None:
        self.frames, self.bar, self.count = frames, bar, 0

    def __iter__(self) -> Iterator[np.ndarray]:
        for frame in self.frames:
            self.count += 1
            self.bar.update(self.count)
            yield frame


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


def _frames(env: Any, artifact: Artifact, stochastic: bool, seed: int, episodes: int) -> Iterator[np.ndarray]:
    """Pictures of the first episodes, seeded as `eval` seeds them, as many as the film needs, and the last of each."""
    stride = max(1, round(env.metadata.get("render_fps", FRAMES_PER_SECOND) / FRAMES_PER_SECOND))
    policy, absorbing = NumpyPolicy(artifact.arrays), artifact.header.metrics["absorbing"]
    with rendering.camera(env) as picture:
        for episode in range(episodes):
            rng, reset_seed = rollout.seeded(seed, episode)
            _, steps = rollout.begin(env, policy, rng if stochastic else None, reset_seed, absorbing=absorbing)
            yield picture()
            for number, step in enumerate(steps, 1):
                if step.over or number % stride == 0:
                    yield picture()
