"""Builds an embedded model from scratch: `python -m recipes.build_tiny out=PATH`."""

from __future__ import annotations

from recipes.cli.command import recipe
from recipes.cli.compose import Composed
from rl.schema import build
from rl.tiny.build import TinyConfig


@recipe("build_tiny", TinyConfig)
def main(composed: Composed) -> None:
    """Trains a tokenizer and a model, measures the model, and writes weights, tokenizer and card to `out`."""
    import time
    from pathlib import Path

    import torch

    from rl.tiny.build import corpus, make_model, make_tokenizer, teach

    config: TinyConfig = build(TinyConfig, composed.tree)
    if config.kind == "agent":
        from rl.tiny.agent_card import card
    else:
        from rl.tiny.card import card
    out = Path(config.out).expanduser()
    started = time.perf_counter()
    torch.manual_seed(config.seed)
    tokenizer = make_tokenizer(corpus(config), config.kind)
    model = make_model(tokenizer)
    print(f"{model.num_parameters():,} parameters, {len(tokenizer):,} tokens")
    teach(model, tokenizer, config, log=print)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    text = card(model, tokenizer, config, time.perf_counter() - started)
    (out / "README.md").write_text(text, encoding="utf-8")
    print(f"{text}\nwritten to {out.absolute()}")


if __name__ == "__main__":
    main()
