"""Where data come from, as users type it: SCHEME:NAME[#SELECTION]. A scheme is one module, and one line here.

sim:pointmass-4direction#50000      simulate; a bare number counts transitions (sim:gym:ID-random: Gymnasium's own)
d4rl:hopper-expert-v2#200           D4RL's files, cached or downloaded; `d4rl:` may be left out
minari:mujoco/hopper/expert-v0      Minari's data sets, local or downloaded
file:log.hdf5#200                   recorded data (in any of the layouts, see `layouts`); `file:` may be left out
file:logs  file:logs/*.hdf5         all recordings of a folder or of a pattern
...#200                             the first trajectories (of a simulation: transitions)
...#steps=5000  #episodes=10        the same, said outright
...#traj=8                          one trajectory, counted from 0
...#best  #best=50                  the one with the highest return, of all or of the first 50
...#filter=train                    those of robomimic's filter key, or of LeRobot's split
...#states=300  #success=300        states drawn at random; success states by the task's own test (experts only)
...#states  #success                all of them
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from smodice_cli.artifacts import Link, hash_of, load, read_header
from smodice_cli.envs import d4rl_tables
from smodice_cli.errors import InputError, UsageError, nearest
from smodice_cli.files import file_digest, matching, members, nearby, sha256
from smodice_cli.registry import Registry
from smodice_cli.sources.layouts import outside
from smodice_cli.sources.source import ROW_SELECTIONS, STATE_SELECTIONS, Source

SCHEMES: Registry[type[Source]] = Registry(
    "scheme",
    {
        "sim": "smodice_cli.sources.sim:Simulation",
        "d4rl": "smodice_cli.sources.d4rl:D4rl",
        "minari": "smodice_cli.sources.minari:Minari",
        "file": "smodice_cli.sources.file:File",
    },
)
MOST_DIGITS = 18  # of a count; Python refuses to read numbers of thousands
EXAMPLES = "e.g. hopper-random-v2, d4rl:hopper-expert-v2#200, sim:pointmass-4direction#50000 or file:log.hdf5#traj=8"


def parse(text: str) -> Source:
    """Take a source text apart; says what was expected where it cannot."""
    body, hash_sign, selection = text.partition("#")
    scheme, colon, name = body.partition(":")
    if scheme not in SCHEMES and body not in d4rl_tables.urls() and body and matching(Path(body)):
        scheme, colon, name = "file", ":", body  # a path may stand alone
    if not colon:
        scheme, name = "d4rl", body
        if name not in d4rl_tables.urls():
            close = nearby(Path(body), "file:") or nearest(body, sorted(d4rl_tables.urls())) if body else ""
            hint = close if close.startswith("did") else EXAMPLES
            raise UsageError(
                f"source '{text}': no such file; expected SCHEME:NAME[#SELECTION], a path or an id of D4RL's", hint
            )
    if scheme not in SCHEMES:
        hint = nearest(scheme, list(SCHEMES), after=f":{name}{hash_sign}{selection}")
        raise UsageError(f"source '{text}': expected SCHEME:NAME[#SELECTION] or a path", hint)
    if not name:
        raise UsageError(f"source '{text}' names nothing after '{scheme}:'")
    kind = SCHEMES[scheme]
    if selection.startswith("filter=") and selection != "filter=":
        return kind(text, scheme, name, "filter", None, selection.removeprefix("filter="))
    return kind(text, scheme, name, *(_parse_selection(text, selection, kind.bare_number) if hash_sign else ()))


def _parse_selection(text: str, selection: str, bare_number: str) -> tuple[str, int | None]:
    """What is counted, and the number, which states and `best` can do without."""
    word, equals, number = selection.partition("=")
    if not equals and word.isdecimal():
        word, number = bare_number, word
    known = [*ROW_SELECTIONS, *STATE_SELECTIONS]
    if word not in known:
        raise UsageError(f"source '{text}': unknown selection '#{word}'", nearest(word, known))
    if not number and word in (*STATE_SELECTIONS, "best"):
        return word, None
    if not number.isdecimal() or len(number) > MOST_DIGITS or (int(number) == 0 and word != "traj"):
        raise UsageError(f"source '{text}': '#{word}=' needs a positive whole number")
    return word, int(number)


def labels(found: Sequence[Source]) -> list[str]:
    """What several sources are called, no two alike: more of the text where labels are, a number where that is."""
    short = [source.label for source in found]
    whole = [source.text if short.count(source.label) > 1 else source.label for source in found]
    return [f"{name} ({whole[: i + 1].count(name)})" if whole.count(name) > 1 else name for i, name in enumerate(whole)]


def linked_files(
    sources: Sequence[Source], folder: Path, *, fetch: bool = True, pins: Sequence[str] = ()
) -> dict[str, Link]:
    """The files sources depend on, policies included, by source text, with digests that tell when one has changed.

    `pins` are SHA-256 sums that files must have, each NAME=SUM with the name that the source is called by.
    """
    wanted = _parse_pins(pins, sources)
    digests: dict[Path, str] = {}
    links = {}
    for source in sources:
        path = source.file(fetch=fetch)
        if path is not None:
            path = path.resolve()
            if path not in digests:
                digests[path] = _digest(path, source, wanted, fetch)
            links[source.text] = Link(os.path.relpath(path, folder.resolve()), digests[path])
    return links


def _parse_pins(pins: Sequence[str], sources: Sequence[Source]) -> dict[str, str]:
    found = {}
    for pin in pins:
        name, _, wanted = pin.rpartition("=")
        if not re.fullmatch("[0-9a-fA-F]{64}", wanted):
            raise UsageError(f"--sha256 {pin}: expected NAME=SUM, 64 hexadecimal digits")
        if name not in [source.name for source in sources]:
            raise UsageError(f"--sha256 {pin}: no source is called '{name}'", nearest(name, [s.name for s in sources]))
        found[name] = wanted.lower()
    return found


def _digest(path: Path, source: Source, wanted: Mapping[str, str], fetch: bool) -> str:
    """An artifact's own digest, its bytes verified, or that of a foreign file's bytes, with all that they reach."""
    if path.suffix == ".safetensors" and path.is_file():
        try:
            kind = read_header(path).kind
        except InputError:  # a policy from elsewhere
            return sha256(path)[:32]
        return load(path, kind).header.digest
    if not path.is_file():  # a folder or a pattern
        others = [sha256(place) for member in members(path) for place in outside.reached(member)[1:]]
        return file_digest(path) if not others else hash_of(files=[file_digest(path), *others])
    first, *others = [sha256(place) for place in outside.reached(path)]
    if first != wanted.get(source.name, first):
        raise InputError(f"{path} is not the file that was asked for: its SHA-256 is {first}", "see --sha256")
    if fetch:
        source.check_sum(first)
    return first[:32] if not others else hash_of(files=[first, *others])
