"""Merge a LoRA adapter into its base, and push it: `python -m recipes.merge_adapter adapter=runs/rl_basic/...`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from recipes.cli.command import recipe
from recipes.cli.compose import Composed
from rl.models.export import (
    Dtype,
    export,
    files_of,
    find_weights,
    is_adapter,
    push,
    require_pushable,
    require_replaceable,
)
from rl.schema import build
from rl.storage.disk import disk_errors


@dataclass(frozen=True)
class MergeConfig:
    """See conf/merge_adapter.yaml."""

    adapter: str
    base: str | None
    out: str | None
    dtype: Dtype
    device: Literal["auto", "cpu", "cuda", "mps"]
    push: bool
    repo_id: str | None
    private: bool
    dry_run: bool


@recipe("merge_adapter", MergeConfig)
def main(composed: Composed) -> None:
    """Writes a complete model, prints what merging did, and pushes it with push=true."""
    config: MergeConfig = build(MergeConfig, composed.tree)
    weights = find_weights(config.adapter, "adapter")
    out = (
        Path(config.out).expanduser().absolute()
        if config.out
        else weights.with_name(f"{weights.name}-merged")
    )
    require_replaceable(out, weights, config.base)
    if config.push and not config.dry_run:
        require_pushable(config.repo_id)
    with disk_errors(f"out={out}", out.parent):
        report = export(weights, config.base, out, config.dtype, config.device)
    if report:
        print(
            f"merged {report['tensors']} LoRA tensors in float32, stored as {report['dtype']}:"
            f" {report['changed']:.1%} of the adapted weights changed; largest logit difference to adapter plus base:"
            f" {report['logit_difference']:.1e} in float32, {report['stored_logit_difference']:.1e} as stored"
        )
    elif not is_adapter(weights):
        print(f"{weights} is a full model: copied without merging")
    print(f"weights: {out}")
    if config.dry_run:
        show_push(config, out)
    elif config.push:
        print(f"pushed:  {push(out, require_pushable(config.repo_id), config.private)}")


def show_push(config: MergeConfig, out: Path) -> None:
    """Prints what push=true would upload, and where."""
    visibility = "private" if config.private else "public"
    print(f"push=true would upload to {config.repo_id or '(repo_id=null)'}, {visibility}:")
    for name, size in files_of(out).items():
        print(f"  {size:>14,} bytes  {name}")
    card = out / "README.md"
    print(
        card.read_text(encoding="utf-8")
        if card.is_file()
        else "no model card: the weights are not in a run directory"
    )


if __name__ == "__main__":
    main()
