"""A policy as ONNX: state in, the policy's most likely action out; equal to our own forward pass to rounding."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from smodice_cli import artifacts
from smodice_cli.algos.acting import POLICY_TENSORS, joined
from smodice_cli.errors import InputError, SmodiceError
from smodice_cli.exports import Export
from smodice_cli.lazy import np

OPSET = 17
IR_VERSION = 8  # what runtimes of 2022 and later read


class Onnx(Export):
    """Two hidden layers and a tanh; the normaliser is folded into the first layer, and members are side by side."""

    kind, ending, extra = "policy", ".onnx", ("onnx", "onnx")

    def write(self, artifact: Path, target: Path, top: int) -> dict[str, Any]:
        import onnx

        policy = artifacts.load(artifact, "policy")
        if missing := [name for name in POLICY_TENSORS if name not in policy.arrays]:
            raise InputError(f"{artifact} is not a policy that can be exported: it has no {missing[0]}")
        tensors = folded(policy)
        model = graph(tensors)
        names = dimension_names(policy)
        for key, value in {"state_names": names[0], "action_names": names[1], "smodice": policy.header.digest}.items():
            model.metadata_props.add(key=key, value=",".join(value) if isinstance(value, list) else value)
        onnx.checker.check_model(model)
        target.write_bytes(model.SerializeToString())
        return {"state": int(tensors["w1"].shape[0]), "action": int(tensors["w3"].shape[1])}


def folded(policy: artifacts.Artifact) -> dict[str, np.ndarray]:
    """The weights of three products, with the normaliser in the first; the absorbing indicator, always 0, is gone."""
    members, t = joined({name: np.asarray(policy.arrays[name], np.float64) for name in POLICY_TENSORS})
    second = t["body.2.weight"]
    if members > 1:  # units that see those of their own member alone
        _, outputs, inputs = second.shape
        second = np.einsum("kij,kl->kilj", second, np.eye(members)).reshape(members * outputs, members * inputs)
    first = t["body.0.weight"] / t["normaliser.std"]
    seen = first[:, :-1] if policy.header.metrics.get("absorbing") else first
    found = {
        "w1": seen.T,
        "b1": t["body.0.bias"] - first @ t["normaliser.mean"],
        "w2": second.T,
        "b2": t["body.2.bias"],
        "w3": t["mean.weight"].T,
        "b3": t["mean.bias"],
        "half": (t["action_high"] - t["action_low"]) / 2,
        "middle": (t["action_high"] + t["action_low"]) / 2,
    }
    return {name: np.ascontiguousarray(array, np.float32) for name, array in found.items()}


def graph(tensors: dict[str, np.ndarray]) -> Any:
    """The model: state (batch, d) to action (batch, a)."""
    from onnx import TensorProto, helper, numpy_helper

    steps = [
        ("Gemm", ["state", "w1", "b1"], "h1"),
        ("Relu", ["h1"], "r1"),
        ("Gemm", ["r1", "w2", "b2"], "h2"),
        ("Relu", ["h2"], "r2"),
        ("Gemm", ["r2", "w3", "b3"], "mean"),
        ("Tanh", ["mean"], "unit"),
        ("Mul", ["unit", "half"], "scaled"),
        ("Add", ["scaled", "middle"], "action"),
    ]
    nodes = [helper.make_node(kind, inputs, [output]) for kind, inputs, output in steps]
    sizes = {"state": tensors["w1"].shape[0], "action": tensors["w3"].shape[1]}
    ends = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size]) for name, size in sizes.items()
    }
    constants = [numpy_helper.from_array(array, name) for name, array in tensors.items()]
    whole = helper.make_graph(nodes, "smodice policy", [ends["state"]], [ends["action"]], constants)
    return helper.make_model(whole, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


def dimension_names(policy: artifacts.Artifact) -> tuple[list[str], list[str]]:
    """What the policy's dataset calls the dimensions of states and actions, where it is still there."""
    with suppress(SmodiceError):
        metrics = artifacts.follow(policy, "dataset", "dataset").header.metrics
        return metrics.get("state_names", []), metrics.get("action_names", [])
    return [], []
