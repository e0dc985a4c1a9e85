"""Runs in Molt's environment: a Ray actor that logs as Molt's trainer does."""

from __future__ import annotations

import time

import ray


@ray.remote
class TrainingActor:
    def fit(self) -> None:
        from molt.utils.logging_utils import init_logger

        logger = init_logger("molt.trainer.rl_trainer")
        for step in (1, 2, 3):
            status = {
                "rollout/reward_mean": 0.5,
                "kl": float("nan"),
                "actor_lr": 1e-6,
                "reward_correct": 0.25,
            }
            logger.info(f"Global step {step}: {status}")


if __name__ == "__main__":
    ray.init(num_cpus=1, include_dashboard=False)
    actor = TrainingActor.remote()
    ray.get(actor.fit.remote())
    time.sleep(3)  # Ray forwards an actor's lines from its log file
