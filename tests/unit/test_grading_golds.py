"""Every gold of GSM8K, in every spelling that a model is likely to use."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable

import pytest

from rewards.grading import Grader, Sample, parse_text
from rewards.grading.golds import GoldError, canonical_gold
from tests.helpers.recipes import shared_dir

FULL_WIDTH = str.maketrans("0123456789-,.", "０１２３４５６７８９－，．")


@pytest.fixture(scope="module")
def golds() -> list[str]:
    found = []
    for split in ("train", "test"):
        with (shared_dir() / "data" / "gsm8k" / f"{split}.jsonl").open(encoding="utf-8") as lines:
            found += [canonical_gold(json.loads(line)["answer"], "marker") for line in lines]
    return found


def test_every_gold_is_the_integer_behind_the_marker(golds):
    assert len(golds) == 7473 + 1319
    assert all(str(int(gold)) == gold for gold in golds)
    assert sum(gold.startswith("-") for gold in golds) == 3 + 2


def grouped(separator: str) -> Callable[[str], str]:
    return lambda gold: f"{int(gold):,}".replace(",", separator)


FORMS: dict[str, Callable[[str], str]] = {
    "plain": lambda gold: gold,
    "math": lambda gold: f"${gold}$",
    "dollar": lambda gold: f"\\${gold}",
    "comma": grouped(","),
    "latex comma": grouped("{,}"),
    "thin space": grouped("\\,"),
    "space": grouped(" "),
    "full-width comma": grouped("，"),
    "yen": lambda gold: f"{gold}円",
    "counter": lambda gold: f"{gold}個",
    "katakana": lambda gold: f"{gold}ドル",
    "text unit": lambda gold: f"{gold}\\text{{ dollars}}",
    "unit": lambda gold: f"{gold} dollars",
    "full width": lambda gold: gold.translate(FULL_WIDTH),
    "full stop": lambda gold: f"{gold}.",
    "decimals": lambda gold: f"{gold}.00",
    "latex percent": lambda gold: f"{gold}\\%",
    "percent": lambda gold: f"{gold}%",
    "full-width percent": lambda gold: f"{gold}％",
    "self-correction": lambda gold: f"987654}}. No, that is wrong: \\boxed{{{gold}",
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_form(golds, form):
    completions = [f"The answer is \\boxed{{{form(gold)}}}." for gold in golds]
    grader = Grader()  # plain numbers need no worker
    right = grader.grade([Sample(parse_text(c), g) for c, g in zip(completions, golds, strict=True)])
    assert all(verdict.correct and verdict.format for verdict in right)
    answers = [verdict.extracted for verdict in right]
    for changed in (
        lambda g: str(int(g) + 1),
        lambda g: str(-int(g) or 1),
        lambda g: f"{g}0" if g != "0" else "10",
    ):
        outcomes = grader.compare([(changed(g), a) for a, g in zip(answers, golds, strict=True)])
        assert {reason for reason, _ in outcomes} == {"wrong"}


@pytest.mark.parametrize(
    ("field", "layout", "reason"),
    [
        ("no marker: 18", "marker", "missing_marker"),
        ("#### 36#### 24", "marker", "different_markers"),
        ("#### ", "marker", "unreadable_gold"),
        ("#### ,", "marker", "unreadable_gold"),
        ("no box: 18", "boxed", "missing_marker"),
        ("#### 18-20", "marker", "unreadable_gold"),
        ("#### 5" + " " * 50_000 + "dollars", "marker", "unreadable_gold"),
        ("$\\boxed{}$", "boxed", "unreadable_gold"),
        ("$\\boxed{???}$", "boxed", "unreadable_gold"),
        ("  ", "plain", "unreadable_gold"),
    ],
)
def test_rejected_golds_say_why(field, layout, reason):
    with pytest.raises(GoldError) as error:
        canonical_gold(field, layout)
    assert error.value.reason == reason


@pytest.mark.parametrize(
    ("field", "gold"),
    [
        ("1,234", "1234"),
        ("１８個", "18"),
        (" 18 ", "18"),
        ("2/5", "2/5"),
        ("50\\%", "50\\%"),
        ("x=5", "x=5"),
        ("A", "A"),
    ],
)
def test_plain_golds(field, gold):
    assert canonical_gold(field, "plain") == gold


@pytest.mark.parametrize("piece", ["{", ".", " ", "\\text{", "1 ", "1万", "#### ", "<<", "```", "(", "あ"])
@pytest.mark.parametrize("layout", ["marker", "boxed", "plain"])
def test_an_endless_gold_is_read_or_rejected_at_once(piece, layout):
    head, tail = {"marker": ("#### 5", "5"), "boxed": ("\\boxed{", "5}"), "plain": ("5", "5")}[layout]
    start = time.monotonic()
    with contextlib.suppress(GoldError):
        canonical_gold(head + piece * (100_000 // len(piece)) + tail, layout)
    assert time.monotonic() - start < 1


def test_japanese_rows():
    path = shared_dir() / "data" / "gsm8k_ja" / "rows.jsonl"
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["expect_gold"] is not None and "missing" not in row["note"]:
            assert canonical_gold(row["answer"], "marker") == row["expect_gold"], row["note"]
