"""Finds the answer in a completion: the last box, or the answer block, of the graded part."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass

from rewards.grading.text import closing, is_blank
from rl.rollouts import Parsed

# The first end-of-turn token, or the stop sequence of a plain "User: ... Assistant: ..." dialog.
_END_OF_TURN = re.compile(
    r"<\|(?:im_end|im_start|endoftext|eot_id|eom_id|end_of_text|end|return)\|>|</s>|<eos>|<(?:end|start)_of_turn>"
    r"|<｜(?:end▁of▁sentence|User)｜>|\n\n(?:User|Human):"
)
_THINK = re.compile(r"</?think>")
_BOX = re.compile(r"\\boxed[^\S\n]*+\n?+[^\S\n]*+\{")
_FRAME = re.compile(r"\\fbox[^\S\n]*+\n?+[^\S\n]*+\{")
_BARE_BOX = re.compile(r"\\boxed(?:[^\S\n]*+([-+]?[\d.,]*\d)|[^\S\n]++([A-Za-z])(?![A-Za-z]))")
_ANSWER_TAGS = re.compile(r"</?(?:think|answer)>")


@dataclass(frozen=True)
class Box:
    """A box in a text: its content (None if it never closes), and whether it is written as ``\\boxed{}``."""

    content: str | None
    proper: bool = True


@dataclass(frozen=True)
class Extraction:
    """The answer as written (or None), whether it has the required format, and the reason for a missing answer."""

    answer: str | None
    format: bool
    missing: str | None = None


def cut_at_end_of_turn(text: str) -> str:
    """The model's own turn: text after the first end token belongs to a turn that it made up."""
    match = _END_OF_TURN.search(text)
    return text[: match.start()] if match else text


def parse_text(completion: str, prefilled_think: bool = False) -> Parsed:
    """A completion given as text, split at its think tags. If the reasoning is unfinished, the answer text is empty."""
    raw = cut_at_end_of_turn(completion)
    head, close, text = raw.rpartition("</think>")
    reopened = "<think>" in text
    if reopened or (prefilled_think and not close):
        head, text = raw, ""
    return Parsed(_THINK.sub("", head).strip("\n"), text, raw, ended="stop", prefilled=prefilled_think)


def last_box(text: str) -> Box | None:
    """The last ``\\boxed{``; if there is none, the last ``\\fbox{``, then the last brace-less ``\\boxed 5``."""
    for pattern, proper in ((_BOX, True), (_FRAME, False)):
        match = _last_match(pattern, text)
        if match:
            end = closing(text, match.end() - 1)
            content = text[match.end() : end] if end >= 0 else None
            if (
                content and text[match.start() - 1 : match.start()] == "\\"
            ):  # the transcript doubles backslashes
                content = content.replace("\\\\", "\\")
            return Box(content, proper)
    bare = _last_match(_BARE_BOX, text)
    return Box(bare[1] or bare[2], proper=False) if bare else None


def boxed_answer(text: str) -> Extraction:
    """The content of the last box. If it is empty or unclosed there is no answer, whatever earlier boxes contain."""
    box = last_box(text)
    if box is None:
        return Extraction(None, False, "no_box")
    if box.content is None:
        return Extraction(None, False, "unclosed_box")
    if is_blank(box.content):
        return Extraction(None, False, "no_box")
    return Extraction(box.content.strip(), box.proper)


def tagged_answer(raw: str, prefilled: bool) -> Extraction:
    """The content of the one answer block after the reasoning; a box inside it is unwrapped.

    The format requires each of the four tags exactly once, in order, with only white space outside of the blocks. The
    opening think tag may be the end of the prompt.
    """
    text = cut_at_end_of_turn(raw)
    if prefilled:
        text = "<think>" + text
    tags = _ANSWER_TAGS.findall(text)
    if tags.count("<answer>") != 1 or tags.index("<answer>") <= _last_think(tags):
        return Extraction(None, False, "no_box")
    if tags[-1] != "</answer>" or tags.count("</answer>") != 1:
        return Extraction(None, False, "unclosed_box")
    before, _, rest = text.partition("<answer>")
    content, _, after = rest.partition("</answer>")
    if is_blank(content):
        return Extraction(None, False, "no_box")
    shape = tags == ["<think>", "</think>", "<answer>", "</answer>"]
    blank_outside = (
        before.lstrip().startswith("<think>") and before.rstrip().endswith("</think>") and not after.strip()
    )
    if last_box(content) is None:
        return Extraction(content.strip(), shape and blank_outside)
    inner = boxed_answer(content)
    return Extraction(inner.answer, shape and blank_outside, inner.missing)


def _last_think(tags: list[str]) -> int:
    """Index of the tag that ends the reasoning; len(tags) if it is still open, -1 if there is no reasoning."""
    places = [i for i, tag in enumerate(tags) if tag in ("<think>", "</think>")]
    if not places:
        return -1
    return places[-1] if tags[places[-1]] == "</think>" else len(tags)


def _last_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    last = deque(pattern.finditer(text), maxlen=1)
    return last[0] if last else None
