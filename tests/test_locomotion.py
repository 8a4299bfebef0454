"""The six locomotion bodies, the numpy policy that acts in them, and the experts shipped with the package."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from smodice_cli import artifacts, envs
from smodice_cli.algos.acting import POLICY_TENSORS, NumpyPolicy
from smodice_cli.envs import rendering
from smodice_cli.errors import InputError, UsageError
from smodice_cli.experts.train import train_expert
from smodice_cli.sources.sim import behaviour, check_actor

BODIES = ("hopper", "walker2d", "halfcheetah", "ant", "halfcheetah-short", "ant-disabled")
POLICIES = Path(str(resources.files("smodice_cli.envs"))) / "policies"
SHIPPED = tuple(sorted(path for path in POLICIES.glob("*.safetensors") if ".state." not in path.name))

shipped_policy = pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
body = pytest.mark.parametrize("name", BODIES)


def env_of(path: Path) -> str:
    """The environment that a shipped policy is for."""
    return re.sub(r"-(medium|\d+k)$", "", path.stem)


def random_policy_tensors(obs_dim: int, act_dim: int, hidden: int = 16) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    return {
        "normaliser.mean": normal(obs_dim),
        "normaliser.std": np.exp(normal(obs_dim)),
        "body.0.weight": normal(hidden, obs_dim),
        "body.0.bias": normal(hidden),
        "body.2.weight": normal(hidden, hidden) / 4,
        "body.2.bias": normal(hidden),
        "mean.weight": normal(act_dim, hidden) / 8,
        "mean.bias": normal(act_dim),
        "log_std.weight": normal(act_dim, hidden) * 2,  # wide enough to meet both clamps
        "log_std.bias": normal(act_dim),
        "action_low": np.full(act_dim, -2.0, np.float32),
        "action_high": np.full(act_dim, 0.5, np.float32),
    }


def torch_actions(tensors: dict[str, np.ndarray], obs: np.ndarray, noise: np.ndarray | None) -> np.ndarray:
    t = {name: torch.tensor(array, dtype=torch.float64) for name, array in tensors.items()}
    x = (torch.tensor(obs, dtype=torch.float64) - t["normaliser.mean"]) / t["normaliser.std"]
    for layer in ("body.0", "body.2"):
        x = torch.relu(torch.nn.functional.linear(x, t[f"{layer}.weight"], t[f"{layer}.bias"]))
    pre = torch.nn.functional.linear(x, t["mean.weight"], t["mean.bias"])
    if noise is not None:
        log_std = torch.nn.functional.linear(x, t["log_std.weight"], t["log_std.bias"]).clamp(-5.0, 2.0)
        pre = pre + log_std.exp() * torch.tensor(noise, dtype=torch.float64)
    low, high = t["action_low"], t["action_high"]
    return (low + (high - low) * (torch.tanh(pre) + 1) / 2).numpy()


@body
def test_body_has_the_registered_shapes_and_horizon(name: str) -> None:
    spec, env = envs.find(name), envs.make(name)
    obs, _ = env.reset(seed=0)
    assert obs.shape == env.observation_space.shape == (spec.obs_dim,)
    assert env.action_space.shape == (spec.act_dim,)
    assert env.get_wrapper_attr("_max_episode_steps") == spec.horizon == 1000


@body
def test_stored_state_replays_to_the_same_next_observation(name: str) -> None:
    env, replayed = envs.make(name), envs.make(name).unwrapped
    rng = np.random.default_rng(0)
    env.reset(seed=1)
    replayed.reset(seed=2)
    for step in range(200):
        inner = env.unwrapped
        qpos, qvel = inner.data.qpos.copy(), inner.data.qvel.copy()
        action = rng.uniform(-1, 1, env.action_space.shape).astype(np.float32)
        next_obs, _, terminated, truncated, _ = env.step(action)
        replayed.set_state(qpos, qvel)
        next_replayed = replayed.step(action)[0]
        np.testing.assert_allclose(next_replayed, next_obs, atol=1e-6)
        if terminated or truncated:
            env.reset(seed=step)


@pytest.mark.parametrize("name", [*BODIES, "pointmass-4direction"])
def test_a_body_put_into_an_observed_state_observes_it_again(name: str) -> None:
    env = envs.make(name)
    env.reset(seed=0)
    for _ in range(3):
        observed = env.step(np.full(env.action_space.shape or (), 0.3, np.float32))[0]
    env.reset(seed=1)
    rendering.put(env, observed)
    inner: Any = env.unwrapped
    again = inner._get_obs() if hasattr(inner, "_get_obs") else inner.maze.observation()
    np.testing.assert_allclose(again, observed)


GYMNASIUM: dict[str, dict[str, Any]] = {
    "hopper": {"id": "Hopper-v5"},
    "walker2d": {"id": "Walker2d-v5", "xml_file": "walker2d.xml"},
    "halfcheetah": {"id": "HalfCheetah-v5"},
    "ant": {"id": "Ant-v5", "include_cfrc_ext_in_observation": False, "contact_cost_weight": 0.0},
}


@pytest.mark.parametrize("name", GYMNASIUM)
def test_a_step_equals_gymnasiums_to_the_bit_but_for_the_healthy_reward_at_the_end(name: str) -> None:
    """v2 pays it on the terminating step too, v5 does not."""
    ours, theirs = envs.make(name), gymnasium.make(**GYMNASIUM[name])
    rng, ends = np.random.default_rng(0), 0
    for seed in range(6):
        np.testing.assert_array_equal(ours.reset(seed=seed)[0], theirs.reset(seed=seed)[0])
        for _ in range(200):
            action = rng.uniform(-1, 1, ours.action_space.shape).astype(np.float32)
            observation, reward, terminated, _, _ = ours.step(action)
            expected, paid, over, _, info = theirs.step(action)
            np.testing.assert_array_equal(observation, expected)
            assert terminated == over
            if terminated:
                assert info["reward_survive"] == 0.0
                assert float(reward) == pytest.approx(float(paid) + 1.0, abs=1e-12)
                ends += 1
                break
            assert reward == paid
    assert ends or name == "halfcheetah"


def test_a_noisy_hopper_is_a_hopper_with_noise_of_its_seed_on_its_actions() -> None:
    """The same policies act in it, and a seed gives the same episode again."""
    still, noisy, again = envs.make("hopper"), envs.make("hopper-noisy"), envs.make("hopper-noisy")
    np.testing.assert_array_equal(still.reset(seed=3)[0], noisy.reset(seed=3)[0])
    again.reset(seed=3)
    for _ in range(5):
        quiet, one, two = (env.step(np.zeros(3, np.float32))[0] for env in (still, noisy, again))
        np.testing.assert_array_equal(one, two)
        assert np.abs(one - quiet).max() > 1e-4
    assert behaviour("hopper-noisy-expert").policy == behaviour("hopper-expert").policy
    assert behaviour("hopper-noisy-75k").policy == behaviour("hopper-75k").policy
    with pytest.raises(InputError, match="trained for hopper, not for walker2d"):
        check_actor(f"walker2d@{POLICIES / 'hopper.safetensors'}")


def test_walker_feet_have_the_different_frictions_of_v2() -> None:
    model = envs.make("walker2d").unwrapped.model
    assert model.geom("foot_geom").friction[0] != model.geom("foot_left_geom").friction[0]


def test_short_cheetah_differs_only_in_torso_and_hips() -> None:
    short = envs.make("halfcheetah-short").unwrapped.model
    full = envs.make("halfcheetah").unwrapped.model
    size_ratio = short.geom_size / np.where(full.geom_size == 0, 1, full.geom_size)
    torso = full.geom("torso").id
    assert size_ratio[torso, 1] == pytest.approx(0.5)  # half the length
    assert size_ratio[torso, 0] == pytest.approx(1.0)  # the same radius
    np.testing.assert_allclose(np.delete(short.geom_size, torso, 0), np.delete(full.geom_size, torso, 0))
    np.testing.assert_allclose(short.geom("head").pos, full.geom("head").pos)
    for hip in ("bthigh", "fthigh"):
        np.testing.assert_allclose(short.body(hip).pos, full.body(hip).pos / 2)


def test_disabled_ant_has_shorter_front_legs_only() -> None:
    disabled = envs.make("ant-disabled").unwrapped.model
    full = envs.make("ant").unwrapped.model
    front = ("aux_1_geom", "left_leg_geom", "left_ankle_geom", "aux_2_geom", "right_leg_geom", "right_ankle_geom")
    back = ("aux_3_geom", "back_leg_geom", "third_ankle_geom", "aux_4_geom", "rightback_leg_geom")
    for names, factor in ((front, 0.75), (back, 1.0)):
        for geom in names:
            assert disabled.geom(geom).size[1] == pytest.approx(factor * full.geom(geom).size[1])
            assert disabled.geom(geom).size[0] == pytest.approx(full.geom(geom).size[0])
    np.testing.assert_allclose(disabled.body("aux_1").pos, 0.75 * full.body("aux_1").pos)
    np.testing.assert_allclose(disabled.body("aux_3").pos, full.body("aux_3").pos)


@pytest.mark.parametrize("sampled", [False, True])
def test_numpy_policy_agrees_with_torch(sampled: bool) -> None:
    tensors = random_policy_tensors(7, 3)
    policy = NumpyPolicy(tensors)
    obs = np.random.default_rng(5).normal(size=(500, 7)).astype(np.float32)
    rng = np.random.default_rng(9) if sampled else None
    noise = np.random.default_rng(9).standard_normal((500, 3), np.float32) if sampled else None
    np.testing.assert_allclose(policy.act(obs, rng), torch_actions(tensors, obs, noise), atol=2e-5)


def test_one_observation_gives_the_same_action_as_a_batch() -> None:
    policy = NumpyPolicy(random_policy_tensors(7, 3))
    obs = np.random.default_rng(5).normal(size=(4, 7))
    single = np.stack([policy.act(row) for row in obs])
    assert policy.act(obs[0]).shape == (3,)
    np.testing.assert_allclose(single, policy.act(obs), atol=1e-5)


def test_acting_leaves_the_observation_and_earlier_actions_alone() -> None:
    policy = NumpyPolicy(random_policy_tensors(7, 3))
    obs = np.ones(7, np.float32)
    first = policy.act(obs, np.random.default_rng(0))
    kept = first.copy()
    policy.act(obs, np.random.default_rng(1))
    np.testing.assert_array_equal(obs, 1.0)
    np.testing.assert_array_equal(first, kept)


def test_bad_policy_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        NumpyPolicy.load(tmp_path / "none.safetensors")
    (tmp_path / "text.safetensors").write_text("no policy")
    with pytest.raises(InputError, match="not a safetensors file"):
        NumpyPolicy.load(tmp_path / "text.safetensors")
    save_file({"x": np.zeros(1, np.float32)}, tmp_path / "other.safetensors")
    with pytest.raises(InputError, match=r"body\.0\.weight"):
        NumpyPolicy.load(tmp_path / "other.safetensors")


def test_training_without_sbx_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sbx", None)
    with pytest.raises(UsageError) as caught:
        train_expert("hopper", tmp_path / "policy.safetensors", steps=10)
    assert "smodice[experts]" in caught.value.hint
    assert not list(tmp_path.iterdir())


def test_every_body_has_its_expert() -> None:
    on_the_way = {*(f"hopper-{k}k" for k in (45, 75, 95)), *(f"halfcheetah-{k}k" for k in (35, 45, 55, 75, 90))}
    on_the_way |= {f"walker2d-{k}k" for k in (15, 45, 125, 145, 185)}
    others = {"ant-heading", "hopper-medium", "ant-heading-medium"}
    assert {path.stem for path in SHIPPED} == {*BODIES, *others, *on_the_way}


@shipped_policy
def test_shipped_policy_is_small_complete_and_documented(path: Path) -> None:
    assert path.stat().st_size < 200_000
    spec, tensors = envs.find(env_of(path)), load_file(path)
    assert set(tensors) == set(POLICY_TENSORS)
    assert {tensor.dtype for tensor in tensors.values()} == {np.dtype(np.float32)}
    policy = NumpyPolicy.load(path)
    assert (policy.obs_dim, policy.act_dim) == (spec.obs_dim, spec.act_dim)
    header = artifacts.load(path, "policy").header
    assert header.metrics["env"] == header.config["env"] == env_of(path)
    assert header.config["command"].startswith(f"smodice train-expert {env_of(path)} ")
    evaluation = header.metrics["evaluation"]
    assert evaluation["episodes"] == 20
    assert evaluation["saturated_share"] < 0.5


@shipped_policy
def test_shipped_policy_earns_its_return_on_new_episodes(path: Path) -> None:
    """In the median of five: an ant that acts with noise falls on its back now and then."""
    env, policy, rng = envs.make(env_of(path)), NumpyPolicy.load(path), np.random.default_rng(0)
    promised = artifacts.read_header(path).metrics["evaluation"]["mean"]
    totals = []
    for seed in range(77, 82):
        obs, _ = env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(policy.act(obs, rng))
            total += float(reward)
            over = terminated or truncated
        totals.append(total)
    random_score = envs.find(env_of(path)).random_score
    assert np.median(totals) > random_score + 0.5 * (promised - random_score)


@body
def test_states_and_actions_are_named_in_the_order_of_the_bodys_joints(name: str) -> None:
    env, model = envs.ENVIRONMENTS[name], envs.make(name).unwrapped.model  # type: ignore[attr-defined]
    assert (len(env.state_names), len(env.action_names)) == (env.obs_dim, env.act_dim)
    hinges = [model.joint(i).name for i in range(model.njnt)][-env.act_dim :]
    rates = env.state_names[-env.act_dim :]
    named = [rate.removesuffix(" rate") for rate in rates]
    moved = [model.joint(joint).name for joint in model.actuator_trnid[:, 0]]
    assert [hinges.index(joint) for joint in moved] == [named.index(action) for action in env.action_names]
    assert env.state_names[env.plot_dims[0]] == "forward speed"  # type: ignore[index]
