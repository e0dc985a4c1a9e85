"""A named set of weighted rewards that share one grader."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from rewards.base import Reward
from rewards.grading import AnswerFormat, AnswerRegion, Grader, Sample
from rewards.grading.votes import votes_of
from rewards.length.base import LengthRule
from rewards.truncated import Truncated
from rl import progress
from rl.errors import NotFinite, UserError, first_line
from rl.rollouts import Problem, Rollout

logger = logging.getLogger("tanka")

LARGEST = 3.4e38  # float32's limit: beyond it the learner's rewards would be infinite
LENGTH = "length"  # the key in `rollout.rewards` of the length rule's change
CONSTANT_STEPS = 20  # warn when a reward has not varied for this many batches


@dataclass(frozen=True, kw_only=True)
class FunctionReward:
    """A user's function as a reward: `function(rollouts)` returns one number a rollout.

    needs_grading: whether it reads `rollout.verdict.correct`.
    """

    function: Callable[[Sequence[Rollout]], Sequence[float]]
    weight: float = 1.0
    baseline: float = 0.0
    needs_grading: bool = True

    def __call__(self, rollouts: Sequence[Rollout]) -> list[float]:
        return self.function(rollouts)  # type: ignore[return-value]  # checked by the set


@dataclass(kw_only=True)
class RewardSet:
    """Grades the rollouts of a batch and sums their rewards: weight * (value - baseline) over the terms.

    answer_format, answer_region, tolerance: how the answer is found and compared (see rewards.grading.Grader). terms: the
    rewards by name; each is logged as `reward_<name>`. length: what a completion's length adds to the sum, `reward_length`.
    truncated: what the sum becomes for a completion that the budget cut.
    """

    name: str
    terms: dict[str, Reward]
    answer_format: AnswerFormat = "boxed"
    answer_region: AnswerRegion = "after_thinking"
    tolerance: float = 0.0
    length: LengthRule | None = None
    truncated: Truncated = field(default_factory=Truncated)
    _grader: Grader = field(init=False, repr=False)
    _warned: set[str] = field(init=False, repr=False, default_factory=set)
    _constant: dict[str, tuple[float | None, int]] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        if not self.terms:
            raise UserError(
                "rewards: the set is empty; expected at least one reward, e.g. rewards.correct._target_=rewards.correct.Correct"
            )
        if self.length is not None and LENGTH in self.terms:
            raise UserError(
                f"rewards.{LENGTH}: length={self.length.name} takes this name; give the reward another, or type length=none"
            )
        for name, term in self.terms.items():
            for key in ("weight", "baseline"):
                value = getattr(term, key, None)
                if not isinstance(value, (int, float)) or not math.isfinite(value):
                    raise UserError(f"rewards.{name}.{key}={value}: expected a finite number, e.g. 0.5")
            wanted = getattr(term, "answer_format", self.answer_format)
            if wanted != self.answer_format:
                raise UserError(
                    f"rewards.{name}: rewards the format {wanted}, but rewards.answer_format={self.answer_format};"
                    f" type rewards.answer_format={wanted}, or use the reward of that format"
                )
        if not 0 <= self.tolerance < 1:
            raise UserError(
                f"rewards.tolerance={self.tolerance}: expected a share of the gold number in [0, 1); e.g. rewards.tolerance=1e-5"
            )
        self._grader = Grader(self.answer_format, self.answer_region, tolerance=self.tolerance)

    def reading(self, answer_region: AnswerRegion, tolerance: float) -> RewardSet:
        """The same rewards for data whose answers are found and compared in another way; it shares the workers."""
        other = replace(self, answer_region=answer_region, tolerance=tolerance)
        other._grader, other._warned = self._grader.reading(answer_region, tolerance), self._warned
        return other

    @property
    def needs_grading(self) -> bool:
        """Whether any reward, or the length rule, reads `verdict.correct`."""
        return any(getattr(term, "needs_grading", True) for term in self.terms.values()) or (
            self.length is not None and self.length.needs_grading and not self.judged_by_environment
        )

    @property
    def judged_by_environment(self) -> bool:
        """Whether `verdict.correct` says that the environment gave its full reward, since no reward grades answers."""
        return self.uses_environment and not any(
            getattr(term, "needs_grading", True) for term in self.terms.values()
        )

    @property
    def uses_environment(self) -> bool:
        """Whether a reward reads what the environment gave."""
        return any(getattr(term, "from_environment", False) for term in self.terms.values())

    @property
    def names(self) -> list[str]:
        """The keys of `rollout.rewards`."""
        return [*self.terms, *([LENGTH] if self.length else [])]

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each key of `rollout.rewards`; a length rule has its weight inside."""
        return {
            **{name: term.weight for name, term in self.terms.items()},
            **({LENGTH: 1.0} if self.length else {}),
        }

    @property
    def instruction(self) -> Callable[[Problem], str] | None:
        """What the length rule adds to a problem's prompt; None where it adds nothing."""
        return getattr(self.length, "instruction", None)

    def start(self) -> None:
        """Starts the grader's first worker in the background, to be ready by the time the weights are loaded."""
        if self.needs_grading:
            self._grader.start()

    def check(self) -> None:
        """Grades known answers. Raises UserError when a verdict is wrong."""
        if self.needs_grading:
            self._grader.self_test()

    def close(self) -> None:
        """Ends the grader's workers."""
        self._grader.close()

    def expect(self, rollouts: Sequence[Rollout]) -> None:
        """Starts grading rollouts that `score` will be called with next; returns at once."""
        if self.needs_grading:
            self._grader.expect([Sample(rollout.parsed, rollout.problem.answer) for rollout in rollouts])

    def score(self, rollouts: Sequence[Rollout], *, watch: bool = True) -> None:
        """Sets `verdict`, `rewards` and `reward` of each of the N rollouts; `watch` counts the batch as a training step.

        Raises UserError, naming the reward and the problem, when a reward raises, returns the wrong count or something
        other than numbers; NotFinite (a UserError) when a number, or the weighted sum, is NaN or exceeds float32.
        """
        with progress.task("grading"):
            self._score(rollouts, watch)

    def _score(self, rollouts: Sequence[Rollout], watch: bool) -> None:
        samples = [Sample(rollout.parsed, rollout.problem.answer) for rollout in rollouts]
        verdicts = self._grader.grade(samples) if self.needs_grading else self._grader.extract(samples)
        for rollout, verdict in zip(rollouts, verdicts, strict=True):
            if self.judged_by_environment:
                correct = (rollout.earned or 0.0) >= 1
                verdict = replace(
                    verdict, correct=correct, format=True, reason="correct" if correct else "wrong"
                )
            rollout.verdict, rollout.rewards, rollout.reward = verdict, {}, 0.0
        for name, term in self.terms.items():
            with progress.task(f"reward {name}"):
                values = _checked_values(f"rewards.{name}", term, rollouts)
            self._warn_of_range(name, values)
            for rollout, value in zip(rollouts, values, strict=True):
                rollout.rewards[name] = value
                _add(rollout, term.weight * (value - term.baseline), f"rewards.{name}")
            if watch:
                self._watch(name, values)
        if self.length is not None:
            _add_length(self.length, rollouts)
        for rollout in (r for r in rollouts if r.truncated):
            rollout.reward = self.truncated.reward(rollout.reward)

    def vote(self, rollouts: Sequence[Rollout]) -> None:
        """Sets `vote` of graded rollouts, for maj@k: answers of equal value to one problem get the same number."""
        groups = _groups(rollouts)
        votes = votes_of(self._grader, [[rollout.verdict for rollout in group] for group in groups])
        for group, numbers in zip(groups, votes, strict=True):
            for rollout, number in zip(group, numbers, strict=True):
                rollout.vote = number

    def _warn_of_range(self, name: str, values: list[float]) -> None:
        outside = next((value for value in values if not 0 <= value <= 1), None)
        if outside is not None and name not in self._warned:
            self._warned.add(name)
            logger.warning(
                "reward %s returned %g: expected a number in [0, 1]; scale it with weight and baseline",
                name,
                outside,
            )

    def _watch(self, name: str, values: list[float]) -> None:
        """Warns once when a reward has had the same value for CONSTANT_STEPS batches."""
        last, steps = self._constant.get(name, (None, 0))
        first = values[0] if len(set(values)) == 1 else None
        steps = steps + 1 if first is not None and first == last else int(first is not None)
        self._constant[name] = (first, steps)
        if steps == CONSTANT_STEPS:
            logger.warning(
                "reward %s was %g for every rollout of %d steps: it teaches nothing; check its condition",
                name,
                first,
                steps,
            )


def _groups(rollouts: Sequence[Rollout]) -> list[list[Rollout]]:
    """The rollouts of each problem."""
    groups: dict[int, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.group, []).append(rollout)
    return list(groups.values())


def _add_length(rule: LengthRule, rollouts: Sequence[Rollout]) -> None:
    """Adds the rule's change to each reward; 0 where a rule that compares completions has one alone."""
    for group in _groups(rollouts):
        alone = rule.needs_groups and len(group) == 1
        changes = [0.0] if alone else _checked_values("length", rule, group)
        for rollout, change in zip(group, changes, strict=True):
            rollout.rewards[LENGTH] = change
            _add(rollout, change, "length")


def _add(rollout: Rollout, amount: float, key: str) -> None:
    rollout.reward += amount
    if not abs(rollout.reward) <= LARGEST:
        raise NotFinite(
            f"rewards: after adding {key}, the weighted sum on problem {rollout.problem.id} is {rollout.reward:g};"
            f" expected a finite number of at most {LARGEST:g}"
        )


def _checked_values(key: str, term: Reward | LengthRule, rollouts: Sequence[Rollout]) -> list[float]:
    try:
        returned = term(tuple(rollouts))  # a tuple, so that a reward cannot remove rollouts
    except (Exception, SystemExit) as error:  # exit() in a reward must not look like the end of the run
        culprit = next((rollout for rollout in rollouts if _raises(term, rollout)), None)
        where = f"on problem {culprit.problem.id}" if culprit else f"on a batch of {len(rollouts)} rollouts"
        raise UserError(
            f"{key}: raised {type(error).__name__} {where}: {first_line(error)}; fix or replace the reward"
        ) from error
    if not isinstance(returned, Iterable):
        raise UserError(
            f"{key}: returned {returned!r}; expected a list of {len(rollouts)} numbers, one a rollout"
        )
    # `item()` turns numpy and torch scalars into plain numbers.
    values = [value.item() if hasattr(value, "item") else value for value in returned]
    if len(values) != len(rollouts):
        first = rollouts[0].problem.id if rollouts else "-"
        raise UserError(
            f"{key}: returned {len(values)} values for {len(rollouts)} rollouts (first problem: {first});"
            " expected one number a rollout"
        )
    for value, rollout in zip(values, rollouts, strict=True):
        if not isinstance(value, (int, float)):
            raise UserError(f"{key}: returned {value!r} on problem {rollout.problem.id}; expected a number")
        if not abs(value) <= LARGEST:
            raise NotFinite(
                f"{key}: returned {_short(value)} on problem {rollout.problem.id}; expected a finite number"
                f" of at most {LARGEST:g}"
            )
    return [float(value) for value in values]


def _short(value: float) -> str:
    return repr(value) if isinstance(value, float) else f"a whole number of {value.bit_length()} bits"


def _raises(term: Reward | LengthRule, rollout: Rollout) -> bool:
    try:
        term([rollout])
    except (Exception, SystemExit):
        return True
    return False
