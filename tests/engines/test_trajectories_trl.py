"""engine=trl with an environment of several turns learns what engine=local learns, in one process and in two."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.engines.test_trl import FULL, finish, launch, same
from tests.helpers.forked import set_up

ENVIRONMENT = (
    "environment._target_=tests.helpers.environments.NagConfig", "environment.name=nag", "max_tokens=48",
    "loss=grpo", "batch_size=4", "group_size=3", FULL, "max_steps=2", "save_every=0", "preflight=off",
)  # fmt: skip
LOCAL_ONLY = "tokens/prefilled_over_needed"


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_random_model) -> Path:
    """A folder with a random model, and a run of engine=local in `local`."""
    folder = tmp_path_factory.mktemp("trl")
    set_up(folder, *tiny_random_model())
    finish(launch(folder, "local", *ENVIRONMENT, "engine=local"))
    metrics = folder / "local/metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert any(row["env/turns"] > 1 for row in rows) and all(row.pop(LOCAL_ONLY) == 1 for row in rows)
    metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_it_learns_what_the_local_engine_learns(folder: Path, processes: int) -> None:
    name = f"trl-{processes}"
    finish(launch(folder, name, *ENVIRONMENT, "engine=trl", "engine.microbatch_rows=3", processes=processes))
    same(folder / "local", folder / name)
