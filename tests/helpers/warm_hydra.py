"""Preloaded last by every fork server (forked.py): Hydra's parser builds its tables when it is first used.

Our own packages are forgotten again: each run imports them anew, so that an import that is missing, out of order or in
a circle still shows.
"""

from __future__ import annotations

import gc
import sys

from recipes.cli.arguments import checked_arguments
from recipes.cli.compose import register_resolvers
from rl.blueprint import Blueprint

register_resolvers()
checked_arguments("rl_basic", Blueprint, ["rewards.correct.weight=0.5", "name='x'"])
for name in list(sys.modules):
    if name.partition(".")[0] in ("recipes", "rl", "rewards", "renderers", "environments"):
        del sys.modules[name]
gc.collect()
gc.freeze()  # a collection would copy every page of this process into the forked one
