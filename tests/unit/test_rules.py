"""Rounds of ThinkPrune, the order by pass rate, redraws without signal, and the estimate at a target: by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from rewards.truncated import Truncated
from rl import refilling
from rl.budget import ThinkPrune, budget_after
from rl.data.curriculum import ByPassRate
from rl.data.pass_rates import PassRates, pass_rates_of, read_pass_rates, write_pass_rates
from rl.errors import UserError
from rl.evaluation.targets import deviation
from rl.losses.grpo import GRPO
from rl.rollouts import Completion, Parsed, Problem, Rollout
from rl.step import Timer
from tests.helpers.rollouts import one_turn


@pytest.mark.parametrize(
    ("steps", "course"),
    [
        (9, [128, 128, 128, 96, 96, 96, 64, 64, 64]),
        (7, [128, 128, 128, 96, 96, 64, 64]),
        (2, [128, 96]),
        (1, [128]),
    ],
)
def test_rounds_share_the_steps_equally(steps, course):
    """2, 1.5 and 1 times 64; step s is in round floor(3 (s - 1) / steps), whatever was cut."""
    budget = budget_after(ThinkPrune(), 64, [], steps)
    found = []
    for step in range(1, steps + 1):
        found.append(budget.tokens)
        row = {"step": step, "budget": budget.tokens, "frac_truncated": 1.0}
        assert budget_after(ThinkPrune(), 64, [row], steps).tokens == (budget.observe(row), budget.tokens)[1]
    assert found == course


def test_the_published_rounds():
    schedule = ThinkPrune(rounds=[4000, 3000, 2000])
    assert schedule.budgets(2000) == ThinkPrune().budgets(2000) == [4000, 3000, 2000]
    with pytest.raises(UserError, match="type max_tokens=2000 too"):
        schedule.first(64)


def rates_in(folder: Path, rows: dict[int, dict[str, float]]) -> PassRates:
    lines = [json.dumps({"step": step, "rates": rates}) + "\n" for step, rates in rows.items()]
    (folder / "pass_rates.jsonl").write_text("".join(lines))
    return PassRates(folder / "pass_rates.jsonl", max(rows), None)


def problems(count: int) -> list[Problem]:
    return [Problem(f"p{i}", "?", "1", "en", "test") for i in range(count)]


def test_often_solved_problems_come_first_and_settled_ones_last(tmp_path):
    """0.9, 0.5, 0.5, unknown, never, always; equal rates in the epoch's shuffled order."""
    known = {"p0": 0.0, "p1": 0.5, "p2": 1.0, "p3": 0.9, "p5": 0.5}
    curriculum = ByPassRate(problems(6), lambda epoch: [5, 4, 3, 2, 1, 0], rates_in(tmp_path, {0: known}))
    assert curriculum.order(0, 0) == [3, 5, 1, 4, 0, 2]
    assert [curriculum.batch(step, 2, 0) for step in range(3)] == [[3, 5], [1, 4], [0, 2]]


@pytest.mark.parametrize("lag", [0, 2])
def test_an_epoch_reads_what_was_measured_before_it(lag, tmp_path):
    """Three steps an epoch: the second reads steps 1 to 3, with a lag of 2 only step 1. Later steps change nothing."""
    rates = rates_in(tmp_path, {0: {}})
    curriculum = ByPassRate(problems(6), lambda epoch: range(6), rates, lag)
    assert [curriculum.batch(step, 2, 0) for step in range(3)] == [[0, 1], [2, 3], [4, 5]]
    right = {"p0": 0.2, "p1": 1.0, "p2": 0.4, "p3": 0.0, "p4": 0.8, "p5": 0.6}
    for step in (1, 2, 3):
        names = [f"p{2 * step - 2}", f"p{2 * step - 1}"]
        rates._write(step, {name: right[name] for name in names})
    second = [curriculum.batch(step, 2, 0) for step in (3, 4, 5)]
    expected = [[4, 5], [2, 0], [3, 1]] if lag == 0 else [[0, 2], [3, 4], [5, 1]]
    assert second == expected
    rates._write(4, {"p0": 0.99})
    again = ByPassRate(problems(6), lambda epoch: range(6), rates, lag)
    assert [again.batch(step, 2, 0) for step in (3, 4, 5)] == second


def test_the_last_measurement_counts_and_a_resume_forgets_later_ones(tmp_path):
    rates_in(tmp_path, {0: {"a": 0.1}, 1: {"a": 0.2, "b": 0.3}, 2: {"b": 0.4}}).close()
    resumed = PassRates(tmp_path / "pass_rates.jsonl", 1, "not read again")
    assert resumed.until(9) == {"a": 0.2, "b": 0.3} and resumed.until(0) == {"a": 0.1}


def test_pass_rates_of_rollouts_and_their_file(tmp_path):
    rollouts = [rollout(0, 1.0, correct) for correct in (True, False, False, True)] + [
        rollout(1, 0.0, None)
    ]  # the second problem was not graded
    assert pass_rates_of(rollouts) == {"p0": 0.5}
    write_pass_rates(tmp_path / "r.jsonl", {"問1": 0.25, "b": 1.0})
    assert read_pass_rates(str(tmp_path / "r.jsonl")) == {"問1": 0.25, "b": 1.0}


@pytest.mark.parametrize("line", ["{}", "[1]", "x", '{"id": 3, "pass_rate": 0.5}', '{"id": "a", "pass_rate": true}', '{"id": "a", "pass_rate": NaN}'])  # fmt: skip
def test_a_line_that_is_no_pass_rate_is_named(line, tmp_path):
    (tmp_path / "r.jsonl").write_text('{"id": "a", "pass_rate": 0.5}\n\n' + line + "\n")
    with pytest.raises(UserError, match="line 3 is no pass rate"):
        read_pass_rates(str(tmp_path / "r.jsonl"))


def rollout(group: int, reward: float, correct: bool | None = True, name: str = "") -> Rollout:
    completion = Completion([7, 7, 7], [-1.0] * 3, "stop")
    verdict = SimpleNamespace(correct=correct)
    problem = Problem(name or f"p{group}", "?", "1", "en", "test")
    return one_turn(
        problem, group, [1], completion, Parsed("", "", "", "stop"), verdict=verdict, reward=reward
    )


class Drawn:
    """What `refill` needs of a run: fresh problems f0, f1, ... whose groups earn the rewards of `script`, in order."""

    def __init__(self, monkeypatch, refill: int, script: Sequence[tuple[float, float]]) -> None:
        self.script, self.asked = list(script), []
        self.problems = SimpleNamespace(train=range(9), fresh=self.fresh)
        rewards = SimpleNamespace(weights={}, truncated=Truncated())
        self.blueprint = SimpleNamespace(refill=refill, batch_size=2, seed=0, loss=GRPO(), rewards=rewards)
        monkeypatch.setattr(refilling, "redraw", self.redraw)

    def fresh(self, step, count, seed, draw, taken):
        self.asked.append((step, count, draw, sorted(taken)))
        return [Problem(f"f{draw}{i}", "?", "1", "en", "test") for i in range(min(count, len(self.script)))]

    def redraw(self, run, step, draw, problems, budget, timer):
        return [
            rollout(g, reward, name=p.id) for g, p in enumerate(problems) for reward in self.script.pop(0)
        ]


def test_silent_groups_are_replaced_until_they_teach_or_the_redraws_end(monkeypatch):
    """Both groups are silent. Draw 1 fills the first slot, draw 2 none, draw 3 the second; 4 of 5 groups were sampled in vain."""
    run = Drawn(monkeypatch, 3, [(1.0, 0.0), (1.0, 1.0), (0.0, 0.0), (0.0, 1.0), (9.0, 9.0)])
    batch = [rollout(0, 1.0), rollout(0, 1.0), rollout(1, 0.0), rollout(1, 0.0)]
    kept, discarded = refilling.refill(run, 5, batch, 64, Timer())  # type: ignore[arg-type]
    assert [(r.problem.id, r.group, r.reward) for r in kept] == [
        ("f10", 0, 1.0), ("f10", 0, 0.0), ("f30", 1, 0.0), ("f30", 1, 1.0),
    ]  # fmt: skip
    assert [r.problem.id for r in discarded[::2]] == ["p0", "f11", "f20", "p1"]
    assert run.asked == [
        (4, 2, 1, ["p0", "p1"]), (4, 1, 2, ["f10", "f11", "p0", "p1"]), (4, 1, 3, ["f10", "f11", "f20", "p0", "p1"]),
    ]  # fmt: skip


def test_a_group_that_no_redraw_replaces_stays(monkeypatch):
    run = Drawn(monkeypatch, 1, [(0.0, 0.0)])
    batch = [rollout(0, 1.0), rollout(0, 0.0), rollout(1, 0.5), rollout(1, 0.5)]
    kept, discarded = refilling.refill(run, 1, batch, 64, Timer())  # type: ignore[arg-type]
    assert [r.problem.id for r in kept] == ["p0", "p0", "p1", "p1"] and len(discarded) == 2


def test_a_group_whose_sampling_failed_is_filled_too(monkeypatch):
    run = Drawn(monkeypatch, 1, [(1.0, 0.0)])
    kept, discarded = refilling.refill(run, 1, [rollout(1, 1.0), rollout(1, 0.0)], 64, Timer())  # type: ignore[arg-type]
    assert [(r.problem.id, r.group) for r in kept] == [("f10", 0)] * 2 + [("p1", 1)] * 2 and not discarded


def test_nothing_is_redrawn_without_need_or_when_a_reward_is_not_finite(monkeypatch):
    for batch in ([rollout(g, r) for g in (0, 1) for r in (1.0, 0.0)], [rollout(0, float("nan"))] * 4):
        run = Drawn(monkeypatch, 9, [])
        kept, discarded = refilling.refill(run, 1, batch, 64, Timer())  # type: ignore[arg-type]
        assert len(kept) == 4 and not discarded and not run.asked


@pytest.mark.parametrize(("target", "expected"), [(5, 2), (3, 0), (1, 2)])
def test_the_deviation_from_a_target(target, expected):
    """Completions of 3 tokens, whatever the problem."""
    assert deviation(target, [rollout(0, 1.0), rollout(0, 1.0), rollout(1, 1.0)]).value == expected


@pytest.mark.parametrize(
    ("name", "factor", "expected"), [("zero", 0.0, [0.8, -0.5]), ("mask", 0.0, [0.8, -0.5]), ("scale", 0.0, [0, -0.5]), ("scale", 0.5, [0.4, -0.5])]
)  # fmt: skip
def test_what_a_cut_completion_earns(name, factor, expected):
    """A penalty is never made smaller by being cut."""
    rule = Truncated(name=name, factor=factor)
    assert [rule.reward(0.8), rule.reward(-0.5)] == expected
