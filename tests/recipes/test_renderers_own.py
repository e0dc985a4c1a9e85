"""A user's own renderer, outside the repository: the example of docs/extending.md, and what can be wrong with one."""

from __future__ import annotations

from pathlib import Path

import pytest

import renderers
from renderers import RendererConfig
from renderers.parsing import Parser
from rl.errors import UserError
from rl.schema import build, convert
from tests.helpers.recipes import run_recipe
from tests.helpers.renderer_families import tokenizer_of
from tests.recipes.test_extending import saved

SHORT = (
    "batch_size=2",
    "group_size=2",
    "max_tokens=8",
    "eval_every=0",
    "preflight=off",
    "logger=none",
    "run_dir=run",
)


def told(folder: Path, recipe: str, *arguments: str, code: int = 0) -> str:
    done = run_recipe(recipe, "--config-dir=conf", *arguments, cwd=folder)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The example, with its module beside the YAML: Python also looks in the folder of --config-dir."""
    saved("A renderer", tmp_path)
    (tmp_path / "lined.py").rename(tmp_path / "conf/lined.py")
    return tmp_path


def test_it_trains_resumes_and_is_sampled_and_evaluated(folder: Path) -> None:
    out = told(folder, "render", "renderer=lined")
    assert "Good day." in out and "Question: Kate" in out and "Reply:▶ the completion starts here" in out
    assert "Good day." in told(folder, "rl_basic", "renderer=lined", *SHORT, "plan=true")
    told(folder, "rl_basic", "renderer=lined", *SHORT, "max_steps=1")
    assert (folder / "run/final/renderer.txt").read_text().startswith("lined:")
    told(folder, "rl_basic", "renderer=lined", *SHORT, "max_steps=2")
    assert "resuming" in (folder / "run/train.log").read_text()
    assert "trained" in told(folder, "sample", "run=run", "rows=1")
    assert "accuracy" in told(folder, "evaluate", "run=run", "problems=2", "completions=1", "out=measured")
    error = told(folder, "sample", "run=run", "rows=1", "renderer=lined", "renderer.greeting=Hey", code=2)
    assert "was trained with the chat format lined:" in error


def test_mistakes_are_one_line(folder: Path) -> None:
    (folder / "conf/renderer/wrong.yaml").write_text("_target_: lined.Round\n")
    for arguments, words in {
        ("renderer=wrong",): "renderer._target_=lined.Round: cannot be imported",
        ("renderer=lined", "renderer.greting=x"): "did you mean renderer.greeting?",
        ("renderer=lined", "renderer.greeting=1"): "renderer.greeting=1: expected text",
        ("renderer=lines",): "did you mean renderer=lined?",
    }.items():
        error = told(folder, "render", *arguments, code=2)
        assert len(error.splitlines()) == 1 and words in error, error


class Base(renderers.Renderer):
    name = "mine"

    def __init__(self, tokenizer, stop_ids):
        self.stop_ids, self._tokenizer = stop_ids, tokenizer
        self._parser = Parser(tokenizer, stop_ids)

    def prompt(self, messages):
        return self._tokenizer.encode("\n".join(m["content"] for m in messages))

    def parse(self, completion):
        return self._parser.parse(completion)


class Raises(Base):
    def __init__(self, tokenizer, stop_ids):
        raise KeyError("no such file")


class TextPrompt(Base):
    def prompt(self, messages):
        return messages[-1]["content"]


class NoPrompt(renderers.Renderer):
    name, parse = "mine", Base.parse

    def __init__(self, tokenizer, stop_ids):
        self.stop_ids = stop_ids


class FirstTurn(Base):
    def prompt(self, messages):
        return self._tokenizer.encode(messages[0]["content"])


class NoParse(Base):
    def parse(self, completion):
        return completion.tokens, []


class NoStops(Base):
    stop_ids = None

    def __init__(self, tokenizer, stop_ids):
        super().__init__(tokenizer, None)


class Bare:
    def __init__(self, tokenizer, stop_ids): ...


def make(tokenizer, stop_ids, suffix: str = ""):
    return Base(tokenizer, stop_ids)


def one_argument(tokenizer): ...


def needs_more(tokenizer, stop_ids, path: str): ...


def load(name: str) -> renderers.Renderer:
    config = convert({"_target_": f"{__name__}.{name}"}, RendererConfig, "renderer")
    return renderers.load(config, tokenizer_of("qwen3"), model_renderer="qwen3")


def test_a_class_and_a_function_do() -> None:
    question = [{"role": "user", "content": "1 + 1?"}]
    for name in ("Base", "make"):
        renderer = load(name)
        assert renderer.prompt(question) == tokenizer_of("qwen3").encode("1 + 1?")
        assert renderer.stop_ids == {tokenizer_of("qwen3").eos_token_id}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Raises", "it raised KeyError: .*no such file"),
        ("TextPrompt", "TextPrompt.prompt returned 'zq0.*expected a list of token ids"),
        ("NoPrompt", "NoPrompt.prompt returned None"),
        ("FirstTurn", "FirstTurn.prompt leaves out the user turn's text"),
        ("NoParse", r"NoParse.parse returned \(\["),
        ("NoStops", "NoStops.stop_ids is NoneType"),
        (
            "Bare",
            "Bare lacks name, stop_ids, stop_text, prefilled, think_close, prompt, parse, cut, fingerprint",
        ),
        ("one_argument", r"expected a class or function that takes \(tokenizer, stop_ids\) first"),
        ("needs_more", "renderer.path: missing; expected text"),
    ],
)
def test_what_is_no_renderer_is_one_line(name: str, words: str) -> None:
    with pytest.raises(UserError, match=rf"^[^\n]*{words}[^\n]*$"):
        load(name)


def test_a_model_that_names_an_unknown_format_is_one_line() -> None:
    with pytest.raises(UserError, match=r"^model\.renderer=qwn3: no such chat format; [^\n]*qwen3[^\n]*$"):
        renderers.load(RendererConfig(), tokenizer_of("qwen3"), model_renderer="qwn3")


def test_a_node_without_a_target_is_checked_as_before() -> None:
    with pytest.raises(UserError, match=r"did you mean renderer\.name"):
        build(RendererConfig, {"nam": "qwen3"}, "renderer")
