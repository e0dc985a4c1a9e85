"""Steps of the main job beside other work, with each way that OpenMP's threads can wait: `python -m benchmarks.busy [rounds]`.

Every contender is one load and one setting, in a fresh process. A load is a number of processes that compute without
end; this file starts and stops them. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from benchmarks.harness import Contender, Figures, Ratio, compare, in_fresh_process, rounds_from
from benchmarks.training import OURS, main_job, ours
from rl.threads import SPINS, usable_cpus

ROUNDS = 3
LOADS = {"quiet": 0.0, "busy": 1.0, "crowded": 3.5}  # endless processes for each CPU
STEPS = {"quiet": 12, "busy": 6, "crowded": 2}
SETTINGS: dict[str, dict[str, str]] = {
    "spinning": {},  # the default of GNU OpenMP
    "spins_10000": {"GOMP_SPINCOUNT": "10000"},
    "spins_1000": {"GOMP_SPINCOUNT": "1000"},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
}
# Ends only with the benchmark itself, however that ends.
ENDLESS = """
import os, sys
while os.getppid() == int(sys.argv[1]):
    for _ in range(10**7):
        pass
"""
OURS_WAITS = f"spins_{SPINS}"  # what rl/threads.py sets


def main(rounds: int) -> None:
    settings = SETTINGS.items()
    contenders = [
        Contender(
            f"{load}_{name}",
            {"busy_processes": processes_of(load), "steps": STEPS[load], **environment},
            partial(measure, load, environment),
        )
        for load in LOADS
        for name, environment in settings
    ]
    ratios = [
        Ratio("step_seconds", f"quiet_{OURS_WAITS}", "quiet_spinning", 1.05),
        Ratio("step_seconds", f"busy_{OURS_WAITS}", f"quiet_{OURS_WAITS}", 3.0),
        *(
            Ratio("step_seconds", f"{load}_{name}", f"{load}_spinning")
            for load in LOADS
            for name in SETTINGS
            if name != "spinning" and (load, name) != ("quiet", OURS_WAITS)
        ),
    ]
    compare("busy", contenders, ratios, rounds)


def processes_of(load: str) -> int:
    return round(LOADS[load] * usable_cpus())


def measure(load: str, environment: dict[str, str]) -> Figures:
    """The figures of one training beside a load."""
    own = {"GOMP_SPINCOUNT": None, "OMP_WAIT_POLICY": None, "OMP_NUM_THREADS": str(usable_cpus())}
    with endless(processes_of(load)):
        return in_fresh_process(
            "benchmarks.busy", "one", str(STEPS[load]), environment={**own, **environment}
        )


@contextmanager
def endless(count: int) -> Iterator[None]:
    """Inside, `count` processes compute without end."""
    processes = [subprocess.Popen([sys.executable, "-c", ENDLESS, str(os.getpid())]) for _ in range(count)]
    try:
        time.sleep(1.0 if count else 0.0)  # until they have started
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def one(steps: int) -> None:
    """Prints the figures of one training."""
    _, times = ours(main_job(*OURS, "preflight=off", f"max_steps={steps}"))
    print(json.dumps({"step_seconds": statistics.fmean(time["seconds"] for time in times)}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        one(int(sys.argv[2]))
    else:
        main(rounds_from(sys.argv[1:], ROUNDS))
