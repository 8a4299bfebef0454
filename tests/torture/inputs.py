"""Mutated files: artifacts, recordings of every layout, recipes, maps, policies, logs, orders and events."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from torture.batches import Case
from torture.processes import ENV
from torture.world import SCORE, SMALL, World

NEW = ("--out", "new.safetensors")
LOGGED = ("--offline", "file:log.hdf5", "--expert", "file:log.hdf5#traj=0")
READERS: list[tuple[str, list[str]]] = [  # a file of ours, and a command that reads it
    ("dataset.h5", ["inspect", "dataset.h5"]),
    ("dataset.h5", ["train-disc", "--data", "dataset.h5", *SMALL, *NEW]),
    ("disc.safetensors", ["train-value", "--disc", "disc.safetensors", *SMALL, *NEW]),
    ("disc.safetensors", ["inspect", "disc.safetensors"]),
    ("value.safetensors", ["train-policy", "--value", "value.safetensors", *SMALL, *NEW]),
    ("weights.h5", ["inspect", "weights.h5"]),
    ("weights.h5", ["export", "weights.h5", "--to", "csv", "--out", "new.csv"]),
    ("weights.h5", ["export", "weights.h5", "--to", "episodes", "--out", "new.json"]),
    ("dataset.h5", ["export", "weights.h5", "--to", "npz", "--out", "new.npz"]),
    ("policy.safetensors", ["eval", *SCORE, "--episodes", "1", "--out", "new.json"]),
    ("policy.safetensors", ["inspect", "policy.safetensors"]),
    ("eval.json", ["inspect", "eval.json"]),
    ("eval.json", ["status", "."]),
    ("grid.h5", ["inspect", "grid.h5"]),
    ("policy.log.jsonl", ["inspect", "policy.safetensors"]),
]
ORDERS: list[tuple[str, list[str]]] = [
    (f"queue/{on}/orders/{name}", [what, "queue"])
    for on in ("local", "slurm")
    for name in ("data.json", "seed0.json", "seed1.jsonl")
    for what in ("status", "cancel")
]
WORK = ("queue/local/orders/data.json", ["work", "queue/local/orders/data.json"])
REPORT = ("eval.json", ["report", ".", "--html", "new.html"])  # a second each
SELDOM = 0.01
_DATA = ["build-dataset", "--env", ENV, "--expert", f"sim:{ENV}#success=3", "--threads", "1", "--out", "new.h5"]


def _foreign() -> list[tuple[str, list[str]]]:
    """Files of others, which nothing seals, with a command that reads each."""
    import formats

    found = [(name, [*_DATA, "--offline", f"file:{name}"]) for name in ("log.hdf5", "log.npz", "minari.hdf5")]
    for name, (file, _, flags) in formats.FORMATS.items():
        path = f"arms/{name}/{file}"
        sources = ("--offline", f"file:{path}", "--expert", f"file:{path}#traj=0")
        found.append((path, ["build-dataset", "--env", "data", "--out", "new.h5", *sources, *flags]))
        found.append((path, ["inspect", path]))
    return [
        *found,
        ("log.hdf5", ["build-dataset", "--env", "data", "--out", "new.h5", *LOGGED]),
        ("counts.hdf5", ["tabular", "counts.hdf5", "--out", "new.h5"]),
        ("map.txt", ["tabular", "map.txt", "--episodes", "20", "--horizon", "9", "--out", "new.h5"]),
        ("recipe.toml", ["run", "recipe.toml", "--dry-run", "--out", "new"]),
        ("foreign.safetensors", [*_DATA, "--offline", f"sim:{ENV}@foreign.safetensors#20"]),
    ]


# --- changes --------------------------------------------------------------------------------------------------------

STRANGE: list[Any] = [None, True, -1, 0, 1e308, 10**400, "", "x" * 5000, "\x1b[31m\u202e"]
STRANGE += ["../../..", "/dev/zero", "gym:antigravity:X", [], {}, [[]], float("nan")]
NUMBERS = (0, 1, 255, 2**31 - 1, 2**32, 2**63 - 1, 2**64 - 1)
DEEP = ('{"smodice":' + "[" * 9000, "a = " + "[" * 9000, '{"a":' * 9000)


def mutate_bytes(content: bytes, rng: random.Random) -> bytes:
    """One to four random changes."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(data) + 1) if data else 0
        size = rng.choice((1, 2, 8, 64, 512))
        match rng.randrange(7):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at : at + size] = rng.randbytes(size)
            case 2:
                del data[at:]
            case 3:
                del data[at : at + size]
            case 4:
                data[at:at] = data[at : at + size]
            case 5:
                data[at : at + 8] = rng.choice(NUMBERS).to_bytes(8, "little")
            case _:
                data[at : at + size] = bytes(size)
    return bytes(data)


def mutate_json(value: Any, rng: random.Random) -> Any:
    """The same with one member replaced, removed or nested deep."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        name = rng.choice(sorted(value))
        if rng.random() < 0.1:
            return {key: inner for key, inner in value.items() if key != name}
        return value | {name: mutate_json(value[name], rng)}
    if isinstance(value, list) and value and rng.random() < 0.6:
        at = rng.randrange(len(value))
        return [*value[:at], mutate_json(value[at], rng), *value[at + 1 :]]
    return rng.choice(STRANGE)


def mutate_lines(text: str, rng: random.Random) -> str:
    """JSON, or a JSON document a line, with one of them changed."""
    try:
        return json.dumps(mutate_json(json.loads(text), rng))
    except ValueError:
        lines = text.splitlines()
        at = rng.randrange(len(lines))
        lines[at] = json.dumps(mutate_json(json.loads(lines[at]), rng))
        return "\n".join(lines) + "\n"


def mutate_header(path: Path, rng: random.Random) -> None:
    """A made-up header that its digest fits: what somebody might send who knows the format."""
    from dataclasses import asdict

    from safetensors.numpy import save

    from smodice_cli import artifacts, containers

    found = artifacts.read_any(path)
    raw = mutate_json(asdict(found.header), rng)
    try:
        header = artifacts.Header.from_json(json.dumps(raw))
        raw = asdict(header) | {"digest": artifacts.content_digest(header, found.arrays)}
    except Exception:  # no header at all: write it as it is
        pass
    if path.suffix == ".json":
        path.write_text(json.dumps({containers.TAG: raw, **found.payload()}))
    elif path.suffix == ".h5":
        import h5py

        with h5py.File(path, "r+", locking=False) as file:
            file.attrs[containers.TAG] = json.dumps(raw)
    else:
        path.write_bytes(save(found.arrays, metadata={containers.TAG: json.dumps(raw)}))


# --- cases ----------------------------------------------------------------------------------------------------------


def mutations(world: World, count: int) -> Iterator[Case]:
    """Changed files of every kind, with the command that reads them and what must hold if it succeeds."""
    foreign, rng = _foreign(), world.rng
    changed: list[str] = []  # by the case before, in the same process
    for number in range(count):
        name, words = rng.choice(((READERS, foreign, READERS, foreign, ORDERS))[number % 5])
        if rng.random() < SELDOM:
            name, words = rng.choice((WORK, REPORT))
        ours = (name, words) in READERS
        how = "bytes"
        if ours and name.endswith((".h5", ".safetensors", ".json")) and rng.random() < 0.4:
            how = "header"
        elif name.startswith("queue") and (words[0] == "work" or rng.random() < 0.7):
            how = "members"
        elif rng.random() < 0.02:
            how = "deep"
        sealed = ours and how == "bytes" and not name.endswith(".jsonl") and words[0] not in ("status", "report")
        judge = partial(_same, world.whole / name, name, words[0] == "inspect") if sealed else None
        yield Case(words, partial(_change, world.whole, changed, name, how, rng.getrandbits(48)), judge)


def _change(whole: Path, changed: list[str], name: str, how: str, seed: int, place: Path) -> None:
    rng = random.Random(seed)
    while changed:
        shutil.copyfile(whole / changed[-1], place / changed.pop())
    if (whole / name).is_dir():  # one of the files in it
        name = str(rng.choice(sorted(p for p in (whole / name).rglob("*") if p.is_file())).relative_to(whole))
    changed.append(name)
    content = (whole / name).read_bytes()
    if how == "header":
        mutate_header(place / name, rng)
    elif how == "members":
        (place / name).write_text(mutate_lines(content.decode(), rng))
    elif how == "deep":
        (place / name).write_text(rng.choice(DEEP))
    else:
        (place / name).write_bytes(mutate_bytes(content, rng))


def _same(original: Path, name: str, shown: bool, place: Path) -> str:
    """A changed file that was accepted must hold what it held, or be shown as what it is without a tag, a recording."""
    from smodice_cli import artifacts
    from smodice_cli.views import recording

    if shown and recording.is_one(place / name):
        return ""
    first, second = artifacts.read_any(original), artifacts.read_any(place / name)
    names = ("kind", "stage", "config", "seed", "key", "metrics", "digest")
    same = all(getattr(first.header, name) == getattr(second.header, name) for name in names)
    arrays = [{key: array.tobytes() for key, array in found.arrays.items()} for found in (first, second)]
    return "" if same and arrays[0] == arrays[1] else "silently accepted"
