"""Reinforcement learning, as M3E compares with it: a perceptron of three layers of 128, trained by
stable-baselines3."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from loadmaster.core.errors import package
from loadmaster.mapping.group_search import MappingSearch

SAMPLES = 500
"""Mappings that are evaluated if nobody says how many."""
_LEVELS = 8
"""Priorities that an action can choose from."""


class _Stop(Exception):
    """Ends the library's learning loop."""


def learn(search: MappingSearch, algorithm: str, **mappings: int) -> None:
    """Run an algorithm of stable-baselines3, by its name there, until the search is done.

    ``mappings`` are options of the algorithm that count steps, a mapping taking one for each job.

    Raises
    ------
    MissingPackageError
        If stable-baselines3 or gymnasium is not installed.
    """
    purpose = f"strategy {algorithm.lower()!r}"
    kind = getattr(package("stable_baselines3", purpose), algorithm)
    if search.done:
        return
    model = kind(
        "MlpPolicy",
        _environment(search, package("gymnasium", purpose)),
        seed=search.seed % 2**31,
        device="cpu",
        verbose=0,
        policy_kwargs={"net_arch": [128, 128, 128]},
        gamma=1.0,
        **{name: count * search.group.jobs for name, count in mappings.items()},
    )
    with suppress(_Stop):
        model.learn(total_timesteps=2**40)


def _environment(search: MappingSearch, gymnasium: Any) -> Any:
    """One step per job, in the order given: the action is its core and its priority; the last step
    is rewarded by the score."""
    group = search.group
    scale = float(group.busy.mean(axis=1).sum()) / group.cores or 1.0
    # Latency of every job on every core, relative to the mean load of a core, and its demand.
    features = np.hstack([group.busy / scale, np.log1p(group.demand)])
    width = features.shape[1] + group.cores

    class Environment(gymnasium.Env):  # type: ignore[misc]
        """The group as an environment: a step gives the next job a core and a priority; the reward
        comes with the last job."""

        observation_space = gymnasium.spaces.Box(0.0, np.inf, (width,), np.float32)
        action_space = gymnasium.spaces.MultiDiscrete([group.cores, _LEVELS])

        def reset(
            self, *, seed: int | None = None, options: dict[str, Any] | None = None
        ) -> tuple[Any, dict[str, Any]]:
            """Begin a new mapping."""
            super().reset(seed=seed)
            self.core = np.zeros(group.jobs, dtype=np.int32)
            self.priority = np.zeros(group.jobs, dtype=np.uint32)
            self.load = np.zeros(group.cores)
            self.job = 0
            return self._observe(), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            """Give the next job a core and a priority."""
            self.core[self.job], level = int(action[0]), int(action[1])
            self.priority[self.job] = level * (2**32 // _LEVELS)
            self.load[self.core[self.job]] += features[self.job, self.core[self.job]]
            self.job += 1
            last = self.job == group.jobs
            return self._observe(), self._reward() if last else 0.0, last, False, {}

        def _observe(self) -> Any:
            """Return the features of the next job and the load of each core."""
            return np.concatenate([features[min(self.job, group.jobs - 1)], self.load]).astype(
                np.float32
            )

        def _reward(self) -> float:
            """Return the negative score of the mapping relative to the bound; stop if the search is
            over."""
            score = float(search.scores(self.core[None], self.priority[None])[0])
            if search.done:
                raise _Stop
            return -score / (search.bound.score or 1.0)

    return Environment()
