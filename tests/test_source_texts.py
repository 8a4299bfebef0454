"""Source texts: what they mean, what they are called, and what is said of those that mean nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import listing, smodice
from recordings import HOPPER

from smodice_cli import sources


def test_bare_d4rl_id_means_the_same_as_with_its_scheme() -> None:
    bare, full = sources.parse("hopper-random-v2#200"), sources.parse("d4rl:hopper-random-v2#200")
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


def test_no_two_sources_have_one_name() -> None:
    texts = ["file:a/log.hdf5", "file:b/log.hdf5", "sim:hopper-random#10", "sim:hopper-random#10", "file:other.npz"]
    found = sources.labels([sources.parse(text) for text in texts])
    expected = ["file:a/log.hdf5", "file:b/log.hdf5", "sim:hopper-random#10 (1)", "sim:hopper-random#10 (2)"]
    assert found == [*expected, "file:other.npz"]
