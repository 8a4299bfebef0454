"""The torture harness in a quick form: a few tries of every kind; `make torture` does thousands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HARNESS = Path(__file__).with_name("torture")


def test_nothing_is_lost_and_everything_is_a_sentence(tmp_path: Path) -> None:
    """In a process of its own, which forks: it has imported everything and started no thread."""
    words = ["--quick", "--record", str(tmp_path / "record.jsonl")]
    done = subprocess.run([sys.executable, HARNESS, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for what in ("mutated files", "abused flags", "power cuts", "kills,"):
        assert what in done.stdout
