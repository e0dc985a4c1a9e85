"""`sweep=length_methods` and `sweep=losses`: every word composes, a part can be typed, seeds become one setting."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import yaml

from recipes.cli.compose import CONF
from tests.helpers.blueprints import composed, options
from tests.helpers.recipes import rl_basic

SMALL = ("batch_size=2", "group_size=2", "max_tokens=16", "max_sampled_tokens=70", "eval_problems=4", "logger=none")  # fmt: skip


def params(sweep: str) -> dict[str, str]:
    return yaml.safe_load((CONF / f"sweep/{sweep}.yaml").read_text())["hydra"]["sweeper"]["params"]


def test_the_sweeps_have_every_method_and_every_loss_without_a_reference_model() -> None:
    methods = set(params("length_methods")["method"].split(","))
    assert methods == set(options("method")) and set(options("length")) <= methods
    losses = set(params("losses")["loss"].split(","))
    assert losses == {loss for loss in options("loss") if not composed(f"loss={loss}").loss.needs_reference}


def test_each_method_is_the_rule_of_its_name() -> None:
    for method in options("method"):
        blueprint = composed(f"method={method}")
        rule = blueprint.rewards.length
        assert (rule.name if rule else method) == method
    assert type(composed("method=tighten").budget).__name__ == "Tighten"
    assert composed("method=tighten").rewards.length is None
    assert composed("method=mask").rewards.truncated.name == "mask"
    assert composed("method=scale").rewards.truncated.name == "scale"
    assert composed("method=refill").refill == 2 and composed("method=refill", "refill=3").refill == 3
    assert composed("method=thinking").thinking_tokens == 48
    assert composed("method=kimi", "length=laser").rewards.length.name == "laser"  # what is typed wins


def test_a_part_of_it_can_be_typed_and_seeds_are_one_setting(tmp_path: Path) -> None:
    result = rl_basic(
        "sweep=length_methods", "method=none,tighten", "seed=0,1", *SMALL, "hydra.sweep.dir=s", cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    states = {f.parent.name: json.loads(f.read_text())["state"] for f in tmp_path.glob("s/*/status.json")}
    assert states == {
        f"method={method},seed={seed}": "finished" for method in ("none", "tighten") for seed in (0, 1)
    }
    with (tmp_path / "s/settings.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {(row["setting"], row["seeds"]) for row in rows} == {("none", "2"), ("tighten", "2")}
    assert all(float(row["sampled_tokens"]) >= 70 for row in rows)


def test_a_word_that_is_no_method_is_one_line(tmp_path: Path) -> None:
    result = rl_basic("method=kimii", cwd=tmp_path)
    assert result.returncode == 2 and "did you mean method=kimi?" in result.stderr
