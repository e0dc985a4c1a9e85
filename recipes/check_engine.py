"""Can a server be trusted: `python -m recipes.check_engine engine=tinker engine.reduction=seq_mean`."""

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

# What rounding to bfloat16 still allows; in float32 a right server is at 0.9999 and within 0.001.
MIN_COSINE, MAX_NORM_ERROR, MAX_DRIFT = 0.99, 0.05, 0.1


@recipe("check_engine", Blueprint)
def main(composed: Composed) -> None:
    """Takes one training step on the service and the same one here, and compares them; exit code 1 when they differ."""
    blueprint = blueprint_from(composed.tree)
    blueprint.engine.check(blueprint)
    if blueprint.model.path is None:
        require_model(str(blueprint.model.id), blueprint.model.revision)
    problems = load(blueprint.data, blueprint.seed)
    found = blueprint.engine.compare(blueprint, problems)
    EscapingConsole(width=100).print(table_of(found))
    wrong = [*faults(found, composed.tree["engine"])]
    for line in wrong or ["the server computes what this machine does"]:
        print(line)
    if wrong:
        raise SystemExit(1)


def table_of(found: Conformance) -> Table:
    """What was measured, beside what was wanted."""
    table = Table("measured", "value", "wanted")
    table.add_row("cosine of the step, there and here", f"{found.cosine:.6f}", f"at least {MIN_COSINE}")
    table.add_row("norm of the step, there / here", f"{found.norm_ratio:.6f}", f"1, within {MAX_NORM_ERROR}")
    table.add_row(
        "log-probabilities, its sampler to its learner",
        f"{found.sampler_drift:.1e}",
        f"below {MAX_DRIFT} nats",
    )
    table.add_row(
        "log-probabilities, its learner to ours", f"{found.learner_drift:.1e}", f"below {MAX_DRIFT} nats"
    )
    table.add_row(
        "rows in the trust region, there / here", "{} / {}".format(*found.admitted), f"equal, of {found.rows}"
    )
    table.add_row(
        "an older policy can be sampled", "yes" if found.overlaps else "no", "yes, or engine.overlap=false"
    )
    return table


def faults(found: Conformance, engine: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the server, or with what was typed about it."""
    # Each is asked for what is right, so that a number which is none counts as wrong.
    if not found.cosine >= MIN_COSINE or found.admitted[0] != found.admitted[1]:
        yield "the step goes elsewhere: the server's gradient is not that of this loss"
    elif not abs(found.norm_ratio - 1) <= MAX_NORM_ERROR:
        other = {"sum": "seq_mean", "seq_mean": "sum"}[engine["reduction"]]
        yield f"the step has another size: the server reduces a loss in another way; type engine.reduction={other}"
    if not (found.sampler_drift <= MAX_DRIFT and found.learner_drift <= MAX_DRIFT):
        yield "the log-probabilities differ: the server has other weights than this model, or computes them coarsely"
    if not found.overlaps and engine["overlap"]:
        yield "sampling from an older policy changes the weights under training: type engine.overlap=false"


if __name__ == "__main__":
    main()
