"""Makes a user's own renderer and tries it on a probe conversation before anything is trained with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from renderers.base import TRIED, OwnRendererConfig, Renderer, lacks_content, probe
from renderers.tokens import decode
from rl.errors import UserError, first_line
from rl.rollouts import Completion, Parsed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MEMBERS = (
    "name",
    "stop_ids",
    "stop_text",
    "prefilled",
    "think_close",
    "prompt",
    "parse",
    "cut",
    "fingerprint",
)


def make_own(
    config: OwnRendererConfig, tokenizer: PreTrainedTokenizerBase, stop_ids: frozenset[int]
) -> Renderer:
    """The renderer that the user's class or function returns.

    Raises UserError, naming the target, when the user's code raises, lacks a member, returns a wrong type or drops the
    question.
    """
    key = f"renderer._target_={config.target}"
    try:
        renderer = config.make(tokenizer, stop_ids)
        wrong = _fault(renderer, tokenizer)
    except UserError:
        raise
    except Exception as error:  # the user's own code may raise anything
        raise UserError(f"{key}: it raised {type(error).__name__}: {first_line(error)}") from error
    if wrong:
        raise UserError(f"{key}: {wrong} (docs/extending.md has an example)")
    return renderer


def _fault(renderer: Renderer, tokenizer: PreTrainedTokenizerBase) -> str | None:
    """How `renderer` breaks the contract of `Renderer`, or None."""
    kind = type(renderer).__name__
    if lacking := [member for member in _MEMBERS if not hasattr(renderer, member)]:
        return (
            f"{kind} lacks {', '.join(lacking)}; expected a class that derives from renderers.base.Renderer"
        )
    if not isinstance(renderer.stop_ids, (set, frozenset)):
        return f"{kind}.stop_ids is {type(renderer.stop_ids).__name__}; expected a set of ids"
    for roles in TRIED:
        prompt = renderer.prompt(probe(roles))
        if not isinstance(prompt, list) or not all(
            type(i) is int and 0 <= i < len(tokenizer) for i in prompt
        ):
            return f"{kind}.prompt returned {prompt!r:.40}; expected a list of token ids"
        if (role := lacks_content(decode(tokenizer, prompt), roles)) is not None:
            turns = ", ".join(roles)
            return f"{kind}.prompt leaves out the {role} turn's text ({turns}); expected every message['content']"
    completion = Completion(prompt[:1], [0.0], "length")
    for method, expected in {"parse": Parsed, "cut": Completion}.items():
        found = getattr(renderer, method)(completion)
        if not isinstance(found, expected):
            return f"{kind}.{method} returned {found!r:.40}; expected an rl.rollouts.{expected.__name__}"
    renderer.fingerprint()
    return None
