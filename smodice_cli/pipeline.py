"""run: the whole chain from a recipe, for methods and seeds, as orders that engines hand to workers.

RUNS/<recipe>/dataset.h5, seed0/{disc,value,policy}.safetensors, seed0/{weights.h5,eval.json}, summary.json;
another algorithm, or a variant of smodice, has its files in seed0/<method>/, but shares the discriminator where it can.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from smodice_cli import envs, interrupts
from smodice_cli.algos import dual
from smodice_cli.config import as_dict, build
from smodice_cli.console import console
from smodice_cli.engine import Options, Result, Stage, check_seed, make
from smodice_cli.errors import InputError, Interrupted, OutOfTimeError, SmodiceError
from smodice_cli.orders import Order, report
from smodice_cli.recipes import config_of
from smodice_cli.stages import DEFAULT, chain, evaluate, maker
from smodice_cli.stages import select_f as selection

HELD_OUT = 0.1  # share of the trajectories of recordings that no simulator replaces
Configs = Mapping[str, Any]  # the config of every stage of one method, by section


@dataclass(frozen=True)
class Chain:
    """What one method (an algorithm, or a variant of smodice) does with one seed."""

    folder: Path
    method: str
    algo: str
    seed: int
    configs: Configs
    common: tuple[str, ...] = ()  # sections whose artifact is the same as smodice's and lies with it

    @property
    def name(self) -> str:
        return f"seed {self.seed}" if self.method == DEFAULT else f"{self.method} seed {self.seed}"

    @property
    def order_name(self) -> str:
        return f"seed{self.seed}" if self.method == DEFAULT else f"{self.method}-seed{self.seed}"

    def stages(self) -> list[Stage]:
        """Its own stages, after those that all chains of a run share."""
        return [stage for stage in chain(self.algo) if not stage.per_run]

    def place(self, kind: str) -> Path:
        """Where its artifact of this kind lies."""
        stage = next(stage for stage in chain(self.algo) if stage.kind == kind)
        if stage.per_run:
            return self.folder / stage.file
        return home(self.folder, DEFAULT if stage.section in self.common else self.method, self.seed) / stage.file


def home(folder: Path, method: str, seed: int) -> Path:
    """Where a method's artifacts of one seed lie."""
    return folder / f"seed{seed}" / (method if method != DEFAULT else "")


def chains(folder: Path, methods: Mapping[str, Configs], seeds: list[int], usual: Configs) -> list[Chain]:
    """All of a run, by the configs of each method; `usual` are smodice's, with which others may share artifacts."""
    found: list[Chain] = []
    for method, configs in methods.items():
        algo = configs["policy"].algo
        shared = [stage.section for stage in chain(algo) if stage.shared]
        common = tuple(section for section in shared if configs[section] == usual[section])
        found += [Chain(folder, method, algo, seed, configs, common) for seed in seeds]
    return found


def unless_made(options: Options, out: Path, since: float) -> Options:
    """Options that force no more what an earlier attempt made, at this time or after it."""
    return replace(options, force=options.force and not (out.exists() and out.stat().st_mtime >= since))


def build_data(folder: Path, config: Any, options: Options, workers: int) -> Result:
    """The dataset that all chains share, simulated in so many processes."""
    stage = maker("dataset")
    return make(stage, None, folder / stage.file, config, 0, replace(options, threads=workers))


def run_chain(
    one: Chain,
    options: Options,
    workers: int,
    *,
    sections: Sequence[str] | None = None,
    missing_input: bool = False,
    results: list[Result] | None = None,
    tell: bool = True,
    since: float = math.inf,
) -> list[Result]:
    """Every stage of a chain, or those of some sections, in this process, with `workers` processes to simulate in.

    With more than one, what snapshots of the policy are to play is played while it trains. `missing_input`: a dry run
    that has no dataset. `results` grows as the stages end. `since`: see `unless_made`.
    """
    results = [] if results is None else results
    with evaluate.Ahead(one.configs["eval"], one.seed) if workers > 1 else nullcontext() as ahead:
        for stage in one.stages():
            if sections is not None and stage.section not in sections:
                continue
            out = one.place(stage.kind)
            if missing_input:
                results.append(Result(out, None, "would run", "its input is made first"))
                continue
            own = replace(unless_made(options, out, since), env=one.configs["dataset"].env)
            own = replace(own, threads=workers) if stage.simulates else own
            start, config = one.place(stage.starts_from(one.algo)), one.configs[stage.section]
            result = make(stage, start, out, config, one.seed, own, ahead)
            results.append(result)
            missing_input = result.status == "would run"
            if tell and not options.dry_run:
                took = f" in {result.header.seconds:.1f} s" if result.header and result.status == "done" else ""
                console.note(f"{result.path}: {result.status}{took}")
    return results


def select_f(folder: Path, configs: Configs, seed: int, options: Options, workers: int, **brief: Any) -> Result:
    """Make the data and smodice's discriminator, as a run would, and compare the divergences on them."""
    unforced = replace(options, force=False)
    data = build_data(folder, configs["dataset"], unforced, workers)
    disc = Chain(folder, DEFAULT, DEFAULT, seed, configs).place("disc")
    made = data
    if data.status != "would run":
        made = make(maker("disc"), data.path, disc, configs["disc"], seed, unforced)
    if made.status == "would run":
        return Result(selection.place(disc), None, "would run", "its input is made first")
    return selection.compare(disc, configs["value"], configs["policy"], seed, options, **brief)


def settle_f(
    folder: Path, methods: Mapping[str, Configs], usual: Configs, seed: int, options: Options, workers: int
) -> dict[str, Configs]:
    """What `f = auto` stands for in a run, decided on its first seed for all; left open in a dry run before that."""
    undecided = [name for name, own in methods.items() if "value" in own and own["value"].f == dual.AUTO]
    if not undecided:
        return dict(methods)
    result = select_f(folder, usual, seed, options, workers)
    found = selection.recommended(result)
    if not found:
        return dict(methods)
    console.note(f"value.f = {dual.AUTO}: {found} (see {result.path})")
    decided = {name: {**methods[name], "value": replace(methods[name]["value"], f=found)} for name in undecided}
    return {**methods, **decided}


def hold_out_recordings(methods: Mapping[str, Configs]) -> dict[str, Configs]:
    """Without a simulator some trajectories are kept out of training, to measure the policy on.

    One of ours that is not installed is refused here, not after the training.
    """
    found = {}
    for name, own in methods.items():
        policy = own["policy"]
        if own["dataset"].env in envs.ENVIRONMENTS:
            envs.check_simulator(own["dataset"].env)
        if not envs.can_simulate(own["dataset"].env) and getattr(policy, "holdout", None) == 0:
            own = {**own, "policy": replace(policy, holdout=HELD_OUT)}
            console.note(f"{name}: no simulator, so policy.holdout = {HELD_OUT} of the trajectories measure the policy")
        found[name] = own
    return found


# --- orders ----------------------------------------------------------------------------------------------------------

MOST_STUCK = 3  # attempts of a worker that end for lack of time without having come any further
DATA = "data"  # the order that makes what all chains of a run share


@dataclass(frozen=True)
class Run:
    """One recipe's run: where it lies, and the configs of its methods by name."""

    folder: Path
    methods: Mapping[str, Configs]
    usual: Configs  # smodice's, with which others may share artifacts
    seeds: list[int]

    def chains(self) -> list[Chain]:
        """Every method with every seed."""
        return chains(self.folder, self.methods, self.seeds, self.usual)

    def undecided(self) -> bool:
        """Whether a method's divergence is still to be chosen."""
        return any("value" in own and own["value"].f == dual.AUTO for own in self.methods.values())

    def told(self) -> dict[str, Any]:
        """What a worker must know to choose it."""
        return {"folder": str(self.folder), "seed": self.seeds[0], "usual": _plain(self.usual)}


def prepare(run: Run, options: Options, workers: int) -> tuple[Run, bool]:
    """Make, in this process, the dataset of a run and choose its divergence; returns the run with that, and False."""
    data = build_data(run.folder, run.usual["dataset"], options, workers)
    console.note(f"{data.path}: {data.status}")
    return replace(run, methods=settle_f(run.folder, run.methods, run.usual, run.seeds[0], options, workers)), False


def look(run: Run, options: Options) -> tuple[Run, bool]:
    """A run with its divergence, if that was chosen already, and whether what its chains share is still to be made."""
    dry = replace(options, dry_run=True)
    data = build_data(run.folder, run.usual["dataset"], dry, 1)
    if data.status == "cached":
        run = replace(run, methods=settle_f(run.folder, run.methods, run.usual, run.seeds[0], dry, 1))
    return run, data.status != "cached" or run.undecided()


def settled(run: Run) -> Run:
    """A run with its divergence, if that was chosen already."""
    return look(run, Options())[0] if run.undecided() else run


def plan(run: Run, options: Options) -> list[Result]:
    """What a dry run says of every artifact."""
    results = [build_data(run.folder, run.usual["dataset"], options, 1)]
    missing = results[0].status != "cached"
    methods = settle_f(run.folder, run.methods, run.usual, run.seeds[0], options, 1)
    for one in replace(run, methods=methods).chains():
        results += run_chain(one, options, 1, missing_input=missing)
    return results


def orders(run: Run, options: Options, on: str, label: str, *, data: bool) -> list[Order]:
    """What is left to do of a run, every artifact in one order: its data, what several chains share, the chains.

    What is there already is tidied up and named.
    """
    given: list[Order] = []
    if data:
        work = {"run": run.told(), "select_f": run.undecided(), "options": asdict(options)}
        given.append(Order(run.folder, DATA, f"{label}{DATA}", DATA, work, (), on))
    found = run.chains()
    uses = Counter((section, one.seed) for one in found for section in one.common)
    makers: dict[tuple[str, int], str] = {}  # the order that makes what chains share; '' where that is there

    def add(one: Chain, sections: list[str], name: str, words: str, needs: Sequence[str]) -> str:
        work = {"run": run.told(), "chain": asdict(one), "sections": sections, "options": asdict(options)}
        order = Order(run.folder, name, label + words, name.rpartition("seed")[0], work, tuple(needs), on)
        if not needs and _is_there(one, sections, options, order.label):
            forget(order)
            return ""
        given.append(order)
        return name

    before = [DATA] if data else []
    for one in found:
        sections = [section for section in one.common if uses[section, one.seed] > 1]
        if sections and (sections[0], one.seed) not in makers:
            maker = add(one, sections, f"shared-seed{one.seed}", f"shared by seed {one.seed}", before)
            makers |= {(section, one.seed): maker for section in sections}
    for one in found:
        shared = [section for section in one.common if (section, one.seed) in makers]
        rest = [stage.section for stage in one.stages() if stage.section not in shared]
        waits = {makers[section, one.seed] for section in shared} - {""}
        add(one, rest, one.order_name, one.name, [*before, *sorted(waits)])
    return given


def forget(order: Order) -> None:
    """Take an order of an earlier command away that never came to its end, now that its work is done."""
    if order.path.exists() and not report(order).done:
        order.remove()


def _is_there(one: Chain, sections: list[str], options: Options, label: str) -> bool:
    """Whether all that an order would make is there; where that cannot be told, its worker will say why."""
    try:
        results = run_chain(one, replace(options, only_cached=True), 1, sections=sections, tell=False)
    except SmodiceError:
        return False
    if any(result.status != "cached" for result in results):
        return False
    for result in results:
        console.note(f"{label}: {result.path}: {result.status}")
    return True


def run_of(given: Sequence[Order]) -> Run | None:
    """The run that orders belong to, as the newest of them say; None where none is a chain's.

    Whoever merely looks at a folder runs no module that an order in it names.
    """
    by_age = sorted(given, key=lambda order: order.path.stat().st_mtime)
    newest = next((order for order in reversed(by_age) if "chain" in order.work), None)
    if newest is None:
        return None
    methods: dict[str, Configs] = {}
    seeds: list[int] = []
    for order in by_age:
        if "chain" in order.work:
            with order.as_expected():
                one = order.work["chain"]
                methods[one["method"]] = _configs(one["configs"], one["algo"])
                seeds.append(check_seed(one["seed"]))
    with newest.as_expected():
        run = newest.work["run"]
        usual, first = _configs(run["usual"], DEFAULT), check_seed(run["seed"])
        for configs in (usual, *methods.values()):
            envs.refuse_module(configs["dataset"].env)
    return Run(newest.run, methods, usual, list(dict.fromkeys([first, *sorted(seeds)])))  # the run's first stays first


def _plain(configs: Configs) -> dict[str, Any]:
    return {name: as_dict(config) for name, config in configs.items()}


def _configs(told: Mapping[str, Any], algo: str) -> Configs:
    return {name: build(config_of(name, algo), name, own) for name, own in told.items()}


def work(order: Order, workers: int) -> None:
    """What the worker of an order does; stopped for lack of time it goes on later, unless that leads nowhere."""
    results: list[Result] = []
    try:
        _work(order, workers, results)
    except (KeyboardInterrupt, Interrupted) as error:
        if not interrupts.out_of_time:
            raise
        moved = isinstance(error, Interrupted) or any(result.status == "done" for result in results)
        console.event(kind="out of time", moved=moved)
        if report(order).stuck >= MOST_STUCK:
            raise InputError(
                f"its time was up {MOST_STUCK} times in a row before it came to a checkpoint or to the end of a stage",
                "give it more time, e.g. --on-set time=4:00:00",
            ) from error
        raise OutOfTimeError("its time is up: it goes on from here when it is started again") from error


def _work(order: Order, workers: int, results: list[Result]) -> None:
    told = order.work
    with order.as_expected():
        options, run = Options(**told["options"]), told["run"]
        folder, seed, usual = Path(run["folder"]), check_seed(run["seed"]), _configs(run["usual"], DEFAULT)
        one = _chain(told["chain"], folder) if "chain" in told else None
        sections, undecided = told.get("sections", []), bool(told.get("select_f"))
    since = order.path.stat().st_mtime
    if one is None:
        place = folder / maker("dataset").file
        results.append(build_data(folder, usual["dataset"], unless_made(options, place, since), workers))
        console.note(f"{results[-1].path}: {results[-1].status}")
        if undecided:
            select_f(folder, usual, seed, options, workers)
        return
    if "value" in sections:
        unforced = replace(options, force=False)
        settled = settle_f(folder, {one.method: one.configs}, usual, seed, unforced, workers)
        one = replace(one, configs=settled[one.method])
    run_chain(one, options, workers, sections=sections, results=results, since=since)


def _chain(told: Mapping[str, Any], folder: Path) -> Chain:
    found = Chain(**{**told, "folder": folder, "configs": _configs(told["configs"], told["algo"])})
    check_seed(found.seed)
    for stage in found.stages():
        found.configs[stage.section], found.place(stage.kind)
    return found
