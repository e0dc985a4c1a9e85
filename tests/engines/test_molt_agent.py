"""A run's agent file under molt.agents from the package, with scripted turns: `make test-molt`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from renderers.tokens import decode
from rl.engines.molt.agent import write_agent
from rl.models.config import ModelConfig
from rl.models.loading import open_renderer
from rl.rollouts import Problem
from rl.task import Task
from tests.helpers.blueprints import composed, composed_tree
from tests.helpers.molt.package import in_molt
from tests.helpers.recipes import ROOT

TINY = ROOT / "assets/tiny"
PROBLEM = Problem(id="a", question="What is 3 + 4?", answer="7", language="en", source="s", steps=1)
# Lists the tools, and teaches the calls of Qwen and Hermes.
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }} <tool_call>...</tool_call><|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CALL = '<tool_call>{"name": "calculate", "arguments": {"expression": "3 + 4"}}</tool_call><|im_end|>'
RIGHT = "so \\boxed{7}<|im_end|>"


def case(*turns: tuple[str, str], max_tokens: int = 64, split: str = "train", max_length: int = 128) -> dict:
    problem = json.dumps({**PROBLEM.__dict__})
    label = {"ground_truth": "7", "problem": problem, "split": split}
    prompt = "what Molt rendered"  # the agent replaces it
    return {
        "prompt": prompt,
        "label": label,
        "turns": turns,
        "max_tokens": max_tokens,
        "max_length": max_length,
    }


def conversations(folder: Path, cases: list[dict], *overrides: str, model: Path = TINY) -> list[dict]:
    """What Molt's runner makes of scripted turns, with the agent file of a run in `folder`."""
    (folder / "molt").mkdir(exist_ok=True)
    tree = composed_tree("engine=molt", "loss=flashreinforce", "data.max_prompt_tokens=64", *overrides)
    (folder / "config.yaml").write_text(yaml.safe_dump(tree))
    write_agent(folder / "molt/agent.py", folder, [])
    request = {"agent": str(folder / "molt/agent.py"), "model": str(model), "cases": cases}
    return in_molt("agent_case.py", request)


def test_the_agent_scores_as_the_run_does(tmp_path):
    right, wrong, cut, test = conversations(tmp_path, [
        case((RIGHT, "stop")),
        case(("so \\boxed{8}<|im_end|>", "stop")),
        case(("so it is and is and", "length"), max_tokens=4),
        case((RIGHT, "stop"), split="test"),
    ])  # fmt: skip
    assert (right["reward"], wrong["reward"], cut["reward"]) == (1.0, 0.1, 0.0)
    assert (right["truncated"], cut["truncated"]) == (False, True)
    assert (
        right["info"]["reward_correct"] == 1
        and wrong["info"]["grade/wrong"] == 1
        and cut["info"]["grade/truncated"] == 1
    )
    blueprint = composed("engine=molt", "loss=flashreinforce", "data.max_prompt_tokens=64")
    _, renderer = open_renderer(blueprint.model, blueprint.renderer)
    expected = Task(blueprint.data.messages, renderer, blueprint.environment).prompt(PROBLEM)
    first, last = right["ranges"][0]
    assert right["tokens"][:first] == expected == right["asked"][0]["prompt"] and last == len(right["tokens"])
    assert right["logprobs"] == [0.0] * first + [-0.5] * (last - first)
    assert cut["ranges"][0][1] - cut["ranges"][0][0] == 4
    assert right["asked"][0]["stops"] == sorted(renderer.stop_ids)
    rows = [
        json.loads(line)
        for file in (tmp_path / "molt/samples").iterdir()
        for line in file.read_text().splitlines()
    ]
    assert {row["split"] for row in rows} == {"train", "test"} and test["reward"] == 1.0
    assert next(row for row in rows if row["split"] == "test")["extracted"] == "7"


def test_a_users_own_reward_and_a_japanese_problem(tmp_path, monkeypatch):
    """The module lies in a folder that only this process knows; the agent file hands it on."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own/short_rewards.py").write_text(
        "def short(rollouts, target):\n    return [target / len(r.completion.tokens) for r in rollouts]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path / "own"))
    problem = Problem(
        "j", "直樹はカードを3枚、姉は4枚持っています。合わせて何枚ですか？", "7", "ja", "s", steps=1
    )
    row = case((RIGHT, "stop"))
    row["label"]["problem"] = json.dumps(problem.__dict__)
    own = (
        "+rewards.short._target_=short_rewards.short",
        "+rewards.short.target=6",
        "+rewards.short.weight=1",
    )
    (found,) = conversations(tmp_path, [row], *own)
    first, last = found["ranges"][0]
    assert found["info"]["reward_short"] == pytest.approx(6 / (last - first))
    assert found["reward"] == pytest.approx(1 + 6 / (last - first))
    blueprint = composed("engine=molt", "loss=flashreinforce", "data.max_prompt_tokens=64")
    tokenizer, _ = open_renderer(blueprint.model, blueprint.renderer)
    shown = decode(tokenizer, found["tokens"][:first])
    assert problem.question in shown and blueprint.data.suffix["ja"] in shown


@pytest.fixture
def tool_model(tmp_path) -> Path:
    """The embedded model with a chat template that knows tools."""
    folder = tmp_path / "model"
    shutil.copytree(TINY, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def test_tools_answer_between_turns_with_exactly_the_renderers_tokens(tmp_path, tool_model):
    settings = (
        "environment=calculator", "renderer=chat_template", f"model.path={tool_model}", "max_tokens=600",
        "environment.max_context=2000",
    )  # fmt: skip
    long = {"max_tokens": 600, "max_length": 2000}
    used, mangled, endless, cut = conversations(tmp_path, [
        case((CALL, "stop"), (RIGHT, "stop"), **long),
        case(("<tool_call>{broken</tool_call><|im_end|>", "stop"), (RIGHT, "stop"), **long),
        case(*[(CALL, "stop")] * 9, **long),
        case((CALL, "stop"), ("so it is and is and " * 200, "length"), **long),
    ], *settings, model=tool_model)  # fmt: skip
    blueprint = composed("engine=molt", "loss=flashreinforce", "data.max_prompt_tokens=64", *settings)
    tokenizer, renderer = open_renderer(
        ModelConfig(name="a", path=str(tool_model), stop_tokens=["<|im_end|>"]), blueprint.renderer
    )
    prompt = Task(blueprint.data.messages, renderer, blueprint.environment).prompt(PROBLEM)
    shown = renderer.continuation([{"role": "tool", "content": "7"}])
    call, answer = (tokenizer.encode(text, add_special_tokens=False) for text in (CALL, RIGHT))
    assert used["tokens"] == prompt + call + shown + answer and "calculate" in decode(tokenizer, prompt)
    assert [end - start for start, end in used["ranges"]] == [len(call), len(answer)]
    assert used["logprobs"][len(prompt) + len(call) :][: len(shown)] == [0.0] * len(shown)
    assert used["reward"] == 1.0 and not used["truncated"]
    assert (
        used["info"]["env/turns"],
        used["info"]["env/tool_calls"],
        used["info"]["env/ended/answered"],
    ) == (2, 1, 1)
    assert used["asked"][1]["max_tokens"] == 600 - len(call)  # the budget is that of the whole conversation

    assert mangled["reward"] == 1.0 and mangled["info"]["env/tool_errors"] == 1
    assert (
        endless["info"]["env/turns"] == 4 and endless["info"]["env/ended/turns"] == 1 and endless["truncated"]
    )
    assert cut["info"]["env/ended/budget"] == 1 and cut["truncated"]
    assert sum(end - start for start, end in cut["ranges"]) == 600
