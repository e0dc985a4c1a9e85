"""Checks that a server trains correctly: `python -m recipes.check_engine engine=tinker engine.reduction=seq_mean`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.table import Table

from recipes.cli.command import recipe
from recipes.cli.compose import Composed
from rl.blueprint import Blueprint, blueprint_from
from rl.data.problems import load
from rl.models.hub import require_model
from rl.terminal import EscapingConsole

if TYPE_CHECKING:
    from rl.engines.conformance import Conformance

# Limits that allow for rounding to bfloat16; a correct float32 server reaches 0.9999 and stays within 0.001.
MIN_COSINE, MAX_NORM_ERROR, MAX_DRIFT = 0.99, 0.05, 0.1


@recipe("check_engine", Blueprint)
def main(composed: Composed) -> None:
    """Takes the same training step on the service and here and compares the two; exit code 1 if they differ."""
    blueprint = blueprint_from(composed.tree)
    blueprint.engine.check(blueprint)
    blueprint.environment.check()
    if blueprint.model.path is None:
        require_model(str(blueprint.model.id), blueprint.model.revision)
    problems = load(blueprint.data, blueprint.seed)
    found = blueprint.engine.compare(blueprint, problems)
    EscapingConsole(width=100).print(table_of(found))
    wrong = [*faults(found, composed.tree["engine"])]
    for line in wrong or ["the server computes the same as this machine"]:
        print(line)
    if wrong:
        raise SystemExit(1)


def table_of(found: Conformance) -> Table:
    """Each measured value beside the expected one."""
    table = Table("measured", "value", "expected")
    table.add_row("cosine of the two steps", f"{found.cosine:.6f}", f"at least {MIN_COSINE}")
    table.add_row(
        "norm of the step, server / local", f"{found.norm_ratio:.6f}", f"1, within {MAX_NORM_ERROR}"
    )
    table.add_row(
        "log-probabilities, server's sampler - its learner",
        f"{found.sampler_drift:.1e}",
        f"below {MAX_DRIFT} nats",
    )
    table.add_row(
        "log-probabilities, server's learner - local", f"{found.learner_drift:.1e}", f"below {MAX_DRIFT} nats"
    )
    table.add_row(
        "rows in the trust region, server / local",
        "{} / {}".format(*found.admitted),
        f"equal, of {found.rows}",
    )
    table.add_row(
        "sampling an older policy is safe", "yes" if found.overlaps else "no", "yes, or engine.overlap=false"
    )
    return table


def faults(found: Conformance, engine: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the server, or with the engine's settings."""
    # The conditions are negated so that NaN fails.
    if not found.cosine >= MIN_COSINE or found.admitted[0] != found.admitted[1]:
        yield f"gradient direction differs (cosine {found.cosine:.2f}): the server does not implement this loss"
    elif not abs(found.norm_ratio - 1) <= MAX_NORM_ERROR:
        other = {"sum": "seq_mean", "seq_mean": "sum"}[engine["reduction"]]
        yield f"step size differs: the server reduces the loss in another way; type engine.reduction={other}"
    if not (found.sampler_drift <= MAX_DRIFT and found.learner_drift <= MAX_DRIFT):
        yield "log-probabilities differ: the server has other weights than this model, or computes at low precision"
    if not found.overlaps and engine["overlap"]:
        yield "sampling from an older policy changes the weights being trained: type engine.overlap=false"


if __name__ == "__main__":
    main()
