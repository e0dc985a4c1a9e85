"""`plan=true`: what a run would do, the origin of each choice, the token ceiling. Loads no weights."""

from __future__ import annotations

import gc
import os
import re
import shlex
import sys
from collections.abc import Mapping
from typing import Any, cast

from omegaconf import OmegaConf
from rich.console import Group
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from recipes.cli.compose import CONF, Composed
from recipes.cli.overrides import parse_override
from renderers.base import Renderer
from rl.blueprint import Blueprint
from rl.data.counting import count_test_rows, load_for_plan
from rl.data.problems import Peek, peek
from rl.preflight.token_ceiling import token_ceiling
from rl.rollouts import Problem
from rl.task import Task, require_reasoning
from rl.terminal import open_console

# Groups that may set root keys, strongest first.
GLOBAL_GROUPS = ("local", "debug", "sweep", "experiment", "method", "loss", "engine")


def print_plan(blueprint: Blueprint, composed: Composed) -> None:
    """Prints the blueprint as a tree, one prompt, the number of steps and the token ceiling."""
    overrides = shlex.join(o for o in composed.overrides if o != "plan=true")
    commands = blueprint.engine.commands(blueprint, overrides)
    peeked = peek(blueprint.data)
    console = open_console()
    renderer = None if blueprint.model.path is None else local_renderer(blueprint, composed)
    for part in (
        blueprint_tree(composed),
        prompt_view(blueprint, peeked, renderer),
        cost_table(blueprint, *count_problems(blueprint, peeked, renderer and renderer[1])),
    ):
        console.print(part)
    for name, command in commands.items():
        console.print(f"{name}: {command}", soft_wrap=True, highlight=False, markup=False)


def blueprint_tree(composed: Composed) -> Tree:
    """The composed blueprint as a tree; each changed value with its origin."""
    tree = Tree(f"[bold]{escape(composed.tree['name'])}[/bold]")
    raw = OmegaConf.to_container(composed.raw, resolve=False)
    _grow(tree, composed.tree, cast(dict[str, Any], raw), "", Origins(composed))
    return tree


class Origins:
    """Finds where a key's value comes from: the command line, a group's file, or another key."""

    def __init__(self, composed: Composed) -> None:
        self.typed = {o.key_or_group: o for o in map(parse_override, composed.overrides)}
        self.choices = composed.choices
        self.primary = OmegaConf.to_container(OmegaConf.load(CONF / "rl_basic.yaml"), resolve=False)

    def of(self, key: str, raw: Any) -> str:
        """A short text for the tree; "" for an unchanged default."""
        if key in self.typed and key not in self.choices:
            return "command line"
        if key in self.choices:
            chosen = f"{key}={self.choices[key]}"
            return f"{chosen}, command line" if key in self.typed else chosen
        assert isinstance(self.primary, dict)
        if key in self.primary and raw != self.primary[key]:
            return next(
                (f"{g}={self.choices[g]}" for g in GLOBAL_GROUPS if may_set(g, self.choices.get(g), key)),
                "a file in --config-dir",
            )
        whole = re.fullmatch(r"\$\{([\w.]+)\}", str(raw))
        return whole[1] if whole else str(raw) if "${" in str(raw) else ""


def may_set(group: str, choice: str | None, key: str) -> bool:
    """Whether the chosen file of a group, or one that it extends, sets a root key.

    True for a file of the user's, which is not read; False for local, which is chosen even where there is no file.
    """
    if choice in (None, "None"):
        return False
    file = CONF / group / f"{choice}.yaml"
    if not file.is_file():
        return group != "local"
    tree = cast(dict[str, Any], OmegaConf.to_container(OmegaConf.load(file), resolve=False))
    extended = (name for name in tree.get("defaults", []) if isinstance(name, str) and name != "_self_")
    return key in tree or any(may_set(group, name, key) for name in extended)


def _grow(tree: Tree, node: Mapping[str, Any], raw: Mapping[str, Any], path: str, origins: Origins) -> None:
    for name, value in node.items():
        key = f"{path}.{name}" if path else str(name)
        origin = origins.of(key, raw.get(name))
        note = f"  [cyan]← {escape(origin)}[/cyan]" if origin else ""
        if isinstance(value, Mapping) and value:
            branch = tree.add(f"[bold]{escape(str(name))}[/bold]{note}")
            _grow(branch, value, raw[name] if isinstance(raw.get(name), Mapping) else value, key, origins)
        else:
            shown = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
            tree.add(f"{escape(str(name))}: {escape(shown)}{note}")


def local_renderer(blueprint: Blueprint, composed: Composed) -> tuple[Any, Renderer]:
    """The tokenizer of a local model, and the renderer bound to it."""
    from rl.models.loading import open_renderer

    if composed.job_dir is None:  # the process ends after this plan, so it may hide torch
        gc.disable()
        # Makes transformers load its tokenizers without torch, which takes a second to import.
        sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it would warn that torch is missing
    tokenizer, renderer = open_renderer(blueprint.model, blueprint.renderer)
    require_reasoning(renderer, blueprint.thinking_tokens)
    return tokenizer, renderer


def prompt_view(blueprint: Blueprint, peeked: Peek, renderer: tuple[Any, Renderer] | None) -> Group:
    """The first problem as the model will see it; as plain messages when its tokenizer is not on this machine."""
    example = Problem(
        "none", "(a question)", "", blueprint.data.language.replace("both", "en"), blueprint.data.name
    )
    messages = blueprint.data.messages(peeked.problem or example)
    notes = [peeked.note] if peeked.note else []
    if renderer is None:
        text = "\n".join(f"{message['role']}: {message['content']}" for message in messages)
        notes.append(
            f"needs the Hub: {blueprint.model.id} (without network, type model.path=FOLDER with a local checkpoint)"
        )
    else:
        ids = Task(lambda _: messages, renderer[1], blueprint.environment).prompt(example)
        text = renderer[0].decode(ids)
        notes.append(f"{len(ids)} prompt tokens, renderer {renderer[1].name}")
    return Group(Panel(Text(text), title="one prompt", title_align="left"), *map(Text, notes), "")


def count_problems(
    blueprint: Blueprint, peeked: Peek, renderer: Renderer | None
) -> tuple[int | None, str, int | None]:
    """Train problems, "at most " where some rows may still be left out, and test problems at most; None: unknown."""
    data = blueprint.data
    if data.generator and not data.max_prompt_tokens:
        return peeked.rows, "", count_test_rows(data)
    problems = load_for_plan(data, blueprint.seed)
    if problems is None:
        return peeked.rows, "at most ", count_test_rows(data)
    if renderer is None:
        return len(problems.train), "at most " if data.max_prompt_tokens else "", len(problems.test)
    problems.keep_short_prompts(Task(problems.messages, renderer, blueprint.environment).prompt)
    return len(problems.train), "", len(problems.test)


def evaluated(name: str, rows: int | None) -> str:
    """A set of `eval_data` with its number of rows, where known."""
    return f"{name} (not known before the download)" if rows is None else f"{name} ({rows:,} problems)"


def reasoning_line(blueprint: Blueprint) -> dict[str, str]:
    """How reasoning and answer share the budget, for a table; {} if the reasoning has no budget of its own."""
    if blueprint.thinking_tokens is None:
        return {}
    left = blueprint.max_tokens - blueprint.thinking_tokens
    return {
        "reasoning": f"closed after {blueprint.thinking_tokens:,} of {blueprint.max_tokens:,} tokens, so that {left:,} are left to answer"
    }


def cost_table(blueprint: Blueprint, train: int | None, at_most: str, test: int | None) -> Table:
    """Optimiser steps and the most completion tokens that the run can sample; see `count_problems` for the counts."""
    table = Table(show_header=False, box=None)
    known = blueprint.max_steps is not None or train is not None
    # A set smaller than one batch makes one smaller batch.
    problems = min(blueprint.batch_size, train or blueprint.batch_size)
    rest = problems - 1 if blueprint.engine.trains_remainder else 0
    steps = blueprint.total_steps(((train or 0) + rest) // problems)
    rollouts = problems * blueprint.group_size
    at_most_steps = "at most " if blueprint.max_sampled_tokens else at_most * (blueprint.max_steps is None)
    sets = {name: count_test_rows(data) for name, data in blueprint.eval_data.items()}
    ceiling = token_ceiling(blueprint, steps, problems, list(sets.values()) or [test])
    lines = {
        **reasoning_line(blueprint),
        "train problems": f"{at_most}{train:,}" if train is not None else "not known before the download",
        **({"evaluation sets": ", ".join(map(evaluated, sets, sets.values()))} if sets else {}),
        "rollouts a step": f"{problems} problems x {blueprint.group_size} completions = {rollouts:,}",
        "optimiser steps": f"{at_most_steps}{steps * blueprint.loss.updates_per_batch:,}"
        if known
        else "epochs x problems / batch_size",
        **(
            {"token ceiling": f"{ceiling.tokens:,} completion tokens", **ceiling.lines()}
            if known
            else {
                "token ceiling": f"{rollouts * ceiling.training.max_tokens * (1 + blueprint.refill):,} completion tokens a step,"
                f" {ceiling.evaluations.rollouts * ceiling.evaluations.max_tokens * bool(blueprint.eval_every):,} an evaluation,"
                f" {ceiling.preflight.tokens:,} in the preflight"
            }
        ),
    }
    for name, value in lines.items():
        table.add_row(name, value)
    return table
