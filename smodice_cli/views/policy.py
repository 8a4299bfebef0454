"""policy: its actions on the data, weighted as it learned from them, against the data's own."""

from __future__ import annotations

from smodice_cli import artifacts
from smodice_cli.algos.acting import NumpyPolicy
from smodice_cli.errors import SmodiceError
from smodice_cli.lazy import np
from smodice_cli.views import Block, Facts, Opened, Panel, Request, Table, View, records
from smodice_cli.views.dataset import at_limit
from smodice_cli.views.plots import SAMPLE, draw_shares, shares_of_most, spread
from smodice_cli.views.render.terminal import percent, short


class PolicyView(View):
    """What the policy does where it learned to act."""

    def figures(self, opened: Opened, request: Request) -> Facts:
        dataset, weighted = opened.dataset, True
        if dataset is None:
            return {}
        try:
            w = np.asarray(artifacts.follow(opened.artifact, "weights", "weights").arrays["w"], np.float64)
        except SmodiceError:
            w, weighted = np.ones(dataset.rows), False
        w = np.where(dataset.real_rows(), w, 0.0)
        rows = np.random.default_rng(0).choice(dataset.rows, min(SAMPLE, dataset.rows), p=w / w.sum())
        acted = NumpyPolicy(opened.artifact.arrays).act(dataset["observations"][rows])
        actions = {"data": dataset["actions"][rows], "policy": acted}
        limit = {name: at_limit(dataset, taken).mean(axis=0) for name, taken in actions.items()}
        found = []
        for dim in range(acted.shape[1]):
            pair = {name: taken[:, dim] for name, taken in actions.items()}
            error, variance = float(np.square(pair["data"] - pair["policy"]).mean()), float(pair["data"].var())
            found.append(
                {"dim": dim, "name": dataset.action_name(dim)}
                | {name: {**spread(taken), "at_limit": float(limit[name][dim])} for name, taken in pair.items()}
                | {"squared_error": error, "explained": 1 - error / variance if variance else None}
                | {"histogram": shares_of_most(pair)}
            )
        return {"actions": found, "weighted": weighted}

    def blocks(self, facts: Facts) -> list[Block]:
        told = facts["metrics"].get("evaluation", {})  # of an expert, sampled as the data are
        figures = [[name.replace("_", " "), short(value)] for name, value in told.items()]
        found: list[Block] = [Table("return of sampled episodes", ["", ""], figures)] if told else []
        if came := facts["metrics"].get("correction"):
            trust = [["of the actions explained by the data", percent(came["explained"])]]
            trust += [["of an error undone by the next action", percent(came["undone"])]]
            found.append(Table("learned to come back from states beside the recorded ones", ["", ""], trust))
        if "actions" not in facts:
            return found
        data = "weighted data" if facts["weighted"] else "data"
        actions = [{"share": "" if a["explained"] is None else percent(a["explained"]), **a} for a in facts["actions"]]
        columns = {
            "action": "{name}",
            data: "{data[mean]:.3g} ± {data[std]:.3g}",
            "policy": "{policy[mean]:.3g} ± {policy[std]:.3g}",
            "at the limit (data | policy)": "{data[at_limit]!p} | {policy[at_limit]!p}",
            "squared error": "{squared_error:.3g}",
            "explained": "{share}",
        }
        return [*found, records(f"actions on the {data}", columns, actions)]

    def panels(self, opened: Opened, facts: Facts, request: Request) -> list[Panel]:
        data = "weighted data" if facts.get("weighted") else "data"
        caption = f"The policy's actions on the {data} against the data's own."
        found = [
            Panel(f"action{a['dim']}", f"Action {a['name']}", caption, draw_shares, ("action", a["histogram"]))
            for a in facts.get("actions", [])
        ]
        return found + super().panels(opened, facts, request)
