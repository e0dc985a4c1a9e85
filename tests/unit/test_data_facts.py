"""Facts of the real GSM8K: a loader that gets these counts wrong gets everything wrong."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from rewards.grading.golds import canonical_gold
from rl.data.config import DataConfig
from rl.data.problems import ProblemSet, load
from rl.schema import build
from tests.helpers.recipes import shared_dir

CONF = Path(__file__).parents[2] / "conf"


@cache
def gsm8k() -> ProblemSet:
    return load(data_config("gsm8k", f"data.path={shared_dir() / 'data' / 'gsm8k'}"), seed=0)


def raw(split: str) -> list[dict[str, str]]:
    path = shared_dir() / "data" / "gsm8k" / f"{split}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def data_config(name: str, *overrides: str) -> DataConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        tree = OmegaConf.to_container(compose(overrides=[f"+data={name}", *overrides]), resolve=True)
    return build(DataConfig, tree["data"], "data")


@pytest.mark.parametrize(
    ("split", "count", "separators", "negatives", "millions"),
    [("train", 7473, 79, 3, 16), ("test", 1319, 14, 2, 2)],
)
def test_counts_of_gsm8k(split: str, count: int, separators: int, negatives: int, millions: int) -> None:
    problems = list(getattr(gsm8k(), split))
    report = gsm8k().report.splits[split]
    assert (report.read, report.kept, len(problems)) == (count, count, count)
    assert f"{count:,} read, {count:,} kept" in "\n".join(gsm8k().report.lines())
    golds = [problem.answer for problem in problems]
    assert all(re.fullmatch(r"0|-?[1-9]\d*", gold) for gold in golds)
    assert sum(gold.startswith("-") for gold in golds) == negatives
    assert sum(abs(int(gold)) >= 1_000_000 for gold in golds) == millions

    answers = [row["answer"] for row in raw(split)]
    assert sum("," in answer.partition("####")[2] for answer in answers) == separators
    assert golds == [answer.partition("#### ")[2].replace(",", "") for answer in answers]
    assert golds == [canonical_gold(answer, "marker") for answer in answers]
    assert len({problem.id for problem in problems}) == count


def test_zero_gold_and_steps_and_no_leaks() -> None:
    assert [i for i, problem in enumerate(gsm8k().train) if problem.answer == "0"] == [626]
    assert gsm8k().report.leaks == {}
    assert gsm8k().train[0].steps == 2
    assert min(problem.steps for problem in gsm8k().train) >= 1


def test_golden_prompts() -> None:
    english = gsm8k()
    assert english.messages(english.train[0])[-1]["content"].endswith(
        "in April and May? Write your answer in the format \\boxed{answer}."
    )
    path = shared_dir() / "data" / "gsm8k_ja" / "rows.jsonl"
    japanese = load(data_config("gsm8k_ja", f"data.path={path}"), seed=0)
    assert len(japanese.train) == 12  # columns that only the public set has are ignored in an own file
    assert japanese.messages(japanese.train[0]) == [
        {
            "role": "user",
            "content": japanese.train[0].question + "回答は\\boxed{answer}の形式で書きなさい。",
        }
    ]


@pytest.mark.parametrize("name", ["gsm8k", "gsm8k_ja", "numina_math_tir", "jsonl", "word_problems"])
def test_shipped_data_sets_agree_with_the_schema(name: str) -> None:
    config = data_config(name)
    assert config.name == name
    assert data_config(name, "data.limit=5", "data.suffix=null").limit == 5
    assert ("<think>" in (config.system_prompt or "")) == (name == "numina_math_tir")


def test_the_public_japanese_rows_stand_beside_their_originals(tmp_path: Path) -> None:
    # the layout that the data card of open-multilang/gsm8k-106 describes; the texts are our own
    table = [
        {
            "id": f"train_{language}_{i}",
            "original_id": i,
            "language": language,
            "question": f"{i}足す1は？" if language == "ja" else f"{i} plus 1?",
            "answer": f"#### {i + 1}" if i else "計算すると1です。",
            "answer_number": i + 1,
            "original_question": f"What is {i} + 1?",
            "original_answer": f"#### {i + 1}",
        }
        for language in ("af", "ja")
        for i in range(4)
    ]
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in table))
    found = load(data_config("gsm8k_ja", f"data.path={path}"), seed=0)
    assert [problem.question for problem in found.train] == [f"{i}足す1は？" for i in range(4)]
    assert found.train[0].answer == "1"
    assert found.report.splits["train"].noted == {"gold_from_source": 1}
