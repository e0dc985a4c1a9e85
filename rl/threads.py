"""How many CPU threads compute, and how they wait for each other. Must run before torch loads.

OpenMP's threads spin while they wait. On a machine whose CPUs are also wanted by others, a spinning thread keeps the
CPU from the one it waits for: a step of the embedded demo then takes up to a hundred times longer. A short spin costs
nothing on a quiet machine (docs/performance.md has the table).
"""

from __future__ import annotations

import math
import os
from collections.abc import MutableMapping
from pathlib import Path

SPINS = "10000"  # iterations of GNU OpenMP, some microseconds
CGROUPS = Path("/sys/fs/cgroup")


def configure(environment: MutableMapping[str, str] = os.environ, jobs: int = 1) -> None:
    """Sets OpenMP's variables for this process and its children; whatever the user has set stays.

    jobs: processes that compute at the same time and share the CPUs.
    """
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", SPINS)
        environment.setdefault("KMP_BLOCKTIME", "0")  # Intel's and LLVM's OpenMP: milliseconds
    environment.setdefault("OMP_NUM_THREADS", str(max(1, usable_cpus() // jobs)))


def usable_cpus() -> int:
    """CPUs that this process may really use: its affinity, and the quota of its container."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(allowed, quota())))


def quota(root: Path = CGROUPS, own: Path = Path("/proc/self/cgroup")) -> float:
    """CPUs that the process's cgroups allow: the smallest limit on the way to the root (v2, then v1); inf for none."""
    try:
        groups = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:  # not Linux
        return math.inf
    limits = [math.inf]
    for _, controllers, name in groups:
        base = root if not controllers else root / "cpu"
        if controllers and "cpu" not in controllers.split(","):
            continue
        path = base / name.lstrip("/")
        for folder in (path, *path.parents):
            limits.append(_limit(folder))
            if folder == base:
                break
    return min(limits)


def _limit(folder: Path) -> float:
    """The limit of one cgroup; inf where it has none."""
    try:
        if (folder / "cpu.max").is_file():
            share, period = (folder / "cpu.max").read_text().split()
        else:
            share = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text()
        return math.inf if share in ("max", "-1") else int(share) / int(period)
    except (OSError, ValueError):
        return math.inf


def summary(environment: MutableMapping[str, str] = os.environ) -> str:
    """E.g. "2 threads on 2 of 8 CPUs"."""
    threads = environment.get("OMP_NUM_THREADS", "all")
    return f"{threads} threads on {usable_cpus()} of {os.cpu_count()} CPUs"
