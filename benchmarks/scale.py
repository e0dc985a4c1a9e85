"""Steps of the main job with 128, 512 and 2,048 rollouts on the embedded model: `python -m benchmarks.scale [rounds]`.

Measures the cost of a rollout and the peak memory, each number of rollouts in a fresh process.
"""

from __future__ import annotations

import json
import statistics
import sys
from functools import partial

from benchmarks.harness import Contender, Ratio, compare, in_fresh_process, peak_memory, rounds_from
from benchmarks.training import OURS, main_job, ours

ROLLOUTS = (128, 512, 2048)
GROUP = 8
STEPS = 3  # the first one is warm-up


def main(rounds: int) -> None:
    contenders = [
        Contender(
            f"rollouts_{n}",
            {"batch_size": n // GROUP, "group_size": GROUP, "steps": STEPS},
            partial(in_fresh_process, "benchmarks.scale", "one", str(n)),
        )
        for n in ROLLOUTS
    ]
    largest, smallest = contenders[-1].name, contenders[0].name
    ratios = [
        Ratio("seconds_per_rollout", largest, smallest, 1.1),
        Ratio("peak_gib", largest, smallest),
    ]
    compare("scale", contenders, ratios, rounds)


def one(rollouts: int) -> None:
    tree = main_job(*OURS, f"batch_size={rollouts // GROUP}", f"group_size={GROUP}", f"max_steps={STEPS}")
    _, steps = ours(tree)
    seconds = statistics.fmean(step["seconds"] for step in steps[1:])
    print(json.dumps({"seconds_per_rollout": seconds / rollouts, "peak_gib": peak_memory()}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        one(int(sys.argv[2]))
    else:
        main(rounds_from(sys.argv[1:], default=3))
