"""How many threads compute, and how they wait: set before torch loads, unless the user has set it."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest

from recipes.cli.sweep import jobs_of
from rl import threads
from tests.helpers.recipes import ROOT


def test_a_users_own_setting_wins():
    own = {"OMP_NUM_THREADS": "3", "GOMP_SPINCOUNT": "7"}
    threads.configure(own)
    assert (own["OMP_NUM_THREADS"], own["GOMP_SPINCOUNT"]) == ("3", "7")
    passive = {"OMP_WAIT_POLICY": "PASSIVE"}
    threads.configure(passive)
    assert "GOMP_SPINCOUNT" not in passive and "KMP_BLOCKTIME" not in passive


def test_jobs_share_the_cpus(monkeypatch):
    monkeypatch.setattr(threads, "usable_cpus", lambda: 8)
    for jobs, each in ((1, "8"), (3, "2"), (20, "1")):
        environment: dict[str, str] = {}
        threads.configure(environment, jobs)
        assert environment["OMP_NUM_THREADS"] == each


@pytest.mark.parametrize(
    ("files", "cgroup", "expected"),
    [
        ({"cpu.max": "max 100000"}, "0::/", math.inf),
        ({"cpu.max": "150000 100000"}, "0::/", 1.5),
        ({"cpu.max": "max 100000", "box/cpu.max": "200000 100000", "box/job/cpu.max": "max 100000"}, "0::/box/job", 2),
        ({"box/cpu.max": "400000 100000", "box/job/cpu.max": "50000 100000"}, "0::/box/job", 0.5),
        ({"cpu/job/cpu.cfs_quota_us": "300000", "cpu/job/cpu.cfs_period_us": "100000"}, "4:cpu,cpuacct:/job", 3),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "4:cpu,cpuacct:/\n1:memory:/", math.inf),
        ({}, "0::/", math.inf),
    ],
)  # fmt: skip
def test_the_quota_of_a_container(files, cgroup, expected, tmp_path):
    root = tmp_path / "cgroup"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (tmp_path / "own").write_text(cgroup)
    assert threads.quota(root, tmp_path / "own") == expected


def test_a_quota_is_rounded_up_and_never_above_the_affinity(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    for quota, cpus in ((math.inf, 3), (1.5, 2), (0.2, 1), (64.0, 3)):
        monkeypatch.setattr(threads, "quota", lambda quota=quota: quota)
        assert threads.usable_cpus() == cpus


def test_jobs_of_a_command_line():
    assert jobs_of(["-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]) == 2
    assert jobs_of(["-m", "max_tokens=1,2"]) == 1
    assert jobs_of(["hydra.launcher.n_jobs=-1"]) == threads.usable_cpus()


def test_torch_sees_the_setting_of_a_recipe(tmp_path):
    """A reward that asks torch and the environment while a recipe trains."""
    (tmp_path / "look.py").write_text(
        "import os, torch\n"
        "def look(rollouts):\n"
        "    print('THREADS', torch.get_num_threads(), os.environ['GOMP_SPINCOUNT'])\n"
        "    return [0.5] * len(rollouts)\n"
    )
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_", "KMP_"))}
    done = subprocess.run(
        [sys.executable, "-m", "recipes.rl_basic", "+rewards.look._target_=look.look", "max_steps=1", "batch_size=2",
         "group_size=2", "max_tokens=4", "eval_every=0", "preflight=off", "logger=none", "run_dir=run"],
        cwd=tmp_path, env=variables | {"PYTHONPATH": str(ROOT)}, text=True, capture_output=True, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"THREADS {threads.usable_cpus()} {threads.SPINS}" in done.stdout
    assert f"computing with {threads.usable_cpus()} threads on" in (tmp_path / "run/train.log").read_text()
