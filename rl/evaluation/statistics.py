"""Estimates from P problems with n completions each: pass@k, maj@k, and 95 % intervals over the problems.

Completions of one problem are correlated, so every interval resamples whole problems (the cluster bootstrap: Efron and
Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13).
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Hashable, Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

RESAMPLES = 2000
Z95 = 1.959963984540054  # the normal distribution's 97.5 % point
T95 = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
)  # Student's t, 1 to 10 degrees of freedom


class Estimate(NamedTuple):
    """A value with its 95 % interval; all NaN without data."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


def estimate(numerators: Sequence[float], denominators: Sequence[float] | None = None) -> Estimate:
    """sum(numerators) / sum(denominators) over P problems (denominators: 1 each) with its bootstrap interval.

    The same P always gives the same resamples, so that estimates over the same problems can be compared. NaN when the
    denominators sum to 0; an end of the interval is inf if the resamples' quantile is.
    """
    import numpy

    top = numpy.asarray(numerators, dtype=float)
    bottom = numpy.ones_like(top) if denominators is None else numpy.asarray(denominators, dtype=float)
    if not bottom.sum():
        return Estimate(math.nan, math.nan, math.nan)
    counts = _resamples(len(top))
    with numpy.errstate(divide="ignore", invalid="ignore"):
        resampled = (counts @ top) / (counts @ bottom)
    resampled = resampled[~numpy.isnan(resampled)]
    # No interpolation: with an inf it would give NaN.
    low = numpy.quantile(resampled, 0.025, method="lower")
    high = numpy.quantile(resampled, 0.975, method="higher")
    return _around(float(top.sum() / bottom.sum()), float(low), float(high))


def _around(value: float, low: float, high: float) -> Estimate:
    """An interval that contains its value: if all resamples are equal, rounding can put it just outside."""
    return Estimate(value, min(low, value), max(high, value))


@functools.lru_cache(maxsize=8)
def _resamples(problems: int) -> Any:
    """[RESAMPLES, P] how often each problem is drawn in each resample."""
    import numpy

    shares = numpy.full(problems, 1 / problems)
    return numpy.random.default_rng(0).multinomial(problems, shares, RESAMPLES).astype(float)


def estimate_share(shares: Sequence[float]) -> Estimate:
    """The mean of P shares with its interval.

    If all shares are 0, or all 1, resamples cannot differ; Wilson's interval for P trials is used instead.
    """
    if shares and all(share == shares[0] for share in shares) and shares[0] in (0, 1):
        return wilson(float(shares[0]), len(shares))
    return estimate(shares)


def estimate_change(changes: Sequence[float]) -> Estimate:
    """The mean of P differences of shares, each in [-1, 1], with its interval.

    If all differences are equal and -1, 0 or 1, resamples cannot differ; the interval then allows for the share of
    deviating problems that Wilson's interval gives for none in P trials.
    """
    if changes and all(change == changes[0] for change in changes) and changes[0] in (-1, 0, 1):
        value, others = float(changes[0]), wilson(0.0, len(changes)).high
        return Estimate(value, max(-1.0, value - others), min(1.0, value + others))
    return estimate(changes)


def wilson(share: float, trials: int) -> Estimate:
    """A share of independent trials with its score interval (Wilson, JASA 22, 1927)."""
    z2 = Z95**2 / trials
    center = (share + z2 / 2) / (1 + z2)
    half = math.sqrt(z2 * (share * (1 - share) + z2 / 4)) / (1 + z2)
    return _around(share, max(0.0, center - half), min(1.0, center + half))


def estimate_over_seeds(estimates: Sequence[Estimate]) -> Estimate:
    """The mean of S runs that differ only in their seed, with its 95 % interval over seeds and problems.

    The runs answer the same problems, so the variation over problems does not shrink with S. Each half of the interval
    is the root of the sum of two squares: Student's t times the standard error over the S values, and the mean half of
    the runs' own intervals over problems (0 where they have none). One run keeps its own interval.
    """
    count = len(estimates)
    if count == 1:
        return estimates[0]
    mean = fmean(each.value for each in estimates)
    seeds = _t95(count - 1) * stdev(each.value for each in estimates) / math.sqrt(count)
    halves = [(0.0, 0.0) if math.isnan(e.low) else (e.value - e.low, e.high - e.value) for e in estimates]
    low, high = (math.hypot(seeds, fmean(sides)) for sides in zip(*halves, strict=True))
    return Estimate(mean, mean - low, mean + high)


def _t95(freedom: int) -> float:
    """The 97.5 % point of Student's t distribution."""
    if freedom <= len(T95):
        return T95[freedom - 1]
    # Cornish and Fisher's expansion in 1 / freedom, within 0.003 here.
    first, second = (Z95**3 + Z95) / 4, (5 * Z95**5 + 16 * Z95**3 + 3 * Z95) / 96
    return Z95 + first / freedom + second / freedom**2


def pass_at_k(correct: int, n: int, k: int) -> float:
    """The chance that k of n completions, drawn without replacement, include at least one of the `correct` ones.

    Unbiased (Chen et al. 2021, arXiv:2107.03374, section 2.1). Raises ValueError unless 1 <= k <= n.
    """
    if not 1 <= k <= n:
        raise ValueError(f"k={k}: expected 1 to n={n}")
    return 1 - math.comb(n - correct, k) / math.comb(n, k)


def majority_at_k(answers: Sequence[Hashable | None], right: Hashable, k: int) -> float:
    """The exact chance that the most frequent answer among k of the n completions is `right`, over all draws of k.

    None does not vote; in a tie of m answers each wins 1/m. Self-consistency: arXiv:2203.11171.
    Raises ValueError unless 1 <= k <= n.
    """
    n = len(answers)
    if not 1 <= k <= n:
        raise ValueError(f"k={k}: expected 1 to n={n}")
    votes = Counter(answer for answer in answers if answer is not None)
    silent = n - votes.total()
    mine = votes.pop(right, 0)
    total = 0.0
    for lead in range(1, min(mine, k) + 1):
        # ways[drawn, rivals]: ways to draw `drawn` other completions, no answer above `lead`, `rivals` answers equal to it
        ways = {(drawn, 0): math.comb(silent, drawn) for drawn in range(min(silent, k - lead) + 1)}
        for count in votes.values():
            ways = _with_answer(ways, count, lead, k - lead)
        favorable = sum(w / (rivals + 1) for (drawn, rivals), w in ways.items() if drawn == k - lead)
        total += math.comb(mine, lead) * favorable
    return total / math.comb(n, k)


def _with_answer(
    ways: dict[tuple[int, int], int], count: int, lead: int, places: int
) -> dict[tuple[int, int], int]:
    """`ways` extended by an answer that `count` completions gave, of which at most `lead` may be drawn."""
    extended: Counter[tuple[int, int]] = Counter()
    for (drawn, rivals), number in ways.items():
        for taken in range(min(count, lead, places - drawn) + 1):
            extended[drawn + taken, rivals + (taken == lead)] += number * math.comb(count, taken)
    return extended
