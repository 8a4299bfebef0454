"""The torture harness in a quick form: a few tries of every kind; `make torture` does thousands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HARNESS = Path(__file__).with_name("torture.py")
FEW = ("--kills", "40", "--changed", "200", "--flags", "100", "--runs", "0", "--minutes", "0.5")


def test_nothing_is_lost_and_everything_is_a_sentence() -> None:
    """In a process of its own, which forks: it has imported everything and started no thread."""
    done = subprocess.run([sys.executable, HARNESS, *FEW], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "power cuts: 0 wrong" in done.stdout
