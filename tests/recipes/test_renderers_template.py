"""A Jinja file of the user's own: a mistake in it is one line that names the file, before anything is trained."""

from __future__ import annotations

from pathlib import Path

import pytest

import renderers
from renderers import RendererConfig, trial
from rl.errors import UserError
from rl.rollouts import Message
from tests.helpers.recipes import run_recipe
from tests.helpers.renderer_families import CHAT_FAMILIES, tokenizer_of

LOOP = "{% for m in messages %}{{ m.content }}{% endfor %}"


def load(path: Path, template: str) -> renderers.Renderer:
    path.write_text(template)
    config = RendererConfig(name="chat_template", template=str(path))
    return renderers.load(config, tokenizer_of("qwen3"))


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{% for c in m['content'] %}{{ c['text'] }}{% endfor %}{% endfor %}",
        "{% for m in messages %}{{ m['content'][0]['text'] }}{% endfor %}",
        '{{ messages[0].content[0]["text"] }}',
        "{{ messages[0].content }}",  # always the first turn
        "{% for m in messages %}{{ m.content | truncate }}{% endfor %}",
        "{% for m in messages %}{{ m.text }}{% endfor %}",
        "{% for m in messages if m.role == 'human' %}{{ m.content }}{% endfor %}",
        "What is 1 + 1?",
        "",
    ],
)
def test_a_template_that_drops_the_question_is_one_line(tmp_path: Path, template: str) -> None:
    with pytest.raises(
        UserError, match=r"^renderer\.template=[^\n]*own\.jinja: [^\n]*leaves out the [^\n]*$"
    ):
        load(tmp_path / "own.jinja", template)


@pytest.mark.parametrize(
    "filters", ["trim", "upper", "replace(' ', '\n')", "wordwrap(20)", "tojson", "title"]
)
def test_a_template_may_change_white_space_and_case(tmp_path: Path, filters: str) -> None:
    load(tmp_path / "own.jinja", LOOP.replace("m.content", f"m.content | {filters}".replace("\n", "\\n")))


def test_turns_that_come_later_are_looked_at_too(tmp_path: Path) -> None:
    renderer = load(tmp_path / "own.jinja", LOOP.replace("messages", "messages if m.role != 'system'"))
    question: list[Message] = [{"role": "user", "content": "1 + 1?"}]
    assert tokenizer_of("qwen3").decode(renderer.prompt(question)) == "1 + 1?"
    with pytest.raises(UserError, match="leaves out the system turn's text"):
        renderer.prompt([{"role": "system", "content": "Be brief."}, *question])


@pytest.mark.parametrize("family", CHAT_FAMILIES)
def test_published_templates_hold_every_turn(family: str) -> None:
    renderer = renderers.load(RendererConfig(name="chat_template"), tokenizer_of(family))
    for roles in (("system", "user"), ("user", "assistant") * 3 + ("user",)):
        renderer.prompt([{"role": role, "content": "x"} for role in roles])


@pytest.mark.parametrize(
    ("template", "word"),
    [
        ("{{ tools | length }}", "TypeError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ nothing | tojson }}", "TypeError"),
        ("{% include 'x' %}", "TypeError"),
        ("{% break %}", "SyntaxError"),
        ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{% if %}", "TemplateSyntaxError"),
        ("{{ nothing.at.all }}", "UndefinedError"),
        ("{{ 'a' + 1 }}", "TypeError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ raise_exception('a\nb') }}", "refuses the turns"),
    ],
)
def test_any_error_of_a_template_is_one_line(tmp_path: Path, template: str, word: str, monkeypatch) -> None:
    monkeypatch.setattr("renderers.chat_template.try_template", lambda *arguments: None)  # tested below
    with pytest.raises(UserError, match=rf"^renderer\.template=[^\n]*own\.jinja: [^\n]*{word}[^\n]*$"):
        load(tmp_path / "own.jinja", template + LOOP)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ 'x' * 10**9 }}", "turns one question into more than 1,000,000 characters"),
        ("{{ 'x' * 10**12 }}", "more than 2 GiB"),
        (
            "{% for i in range(99999) %}xxxxxxxxxxxxxxxxxxxx{% endfor %}",
            "turns one question into more than 1,000,000 characters",
        ),
        pytest.param(
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            "takes more than",
            marks=pytest.mark.slow,
        ),
        pytest.param("{{ 10 ** (10 ** 10) }}", "takes more than|GiB", marks=pytest.mark.slow),
        (
            "{% if messages | length > 2 %}{{ 'x' * 10**9 }}{% endif %}",
            "turns one question into more than 1,000,000 characters",
        ),
    ],
)
def test_a_template_has_limits(tmp_path: Path, template: str, words: str) -> None:
    with pytest.raises(UserError, match=rf"^renderer\.template=[^\n]*own\.jinja: [^\n]*({words})[^\n]*$"):
        load(tmp_path / "own.jinja", template + LOOP)


def test_only_a_file_is_tried_in_a_process_of_its_own(tmp_path: Path, monkeypatch) -> None:
    started = []
    monkeypatch.setattr(trial.subprocess, "run", lambda *a, **k: started.append(a) or 1 / 0)
    renderers.load(RendererConfig(name="chat_template"), tokenizer_of("qwen3"))
    assert not started
    with pytest.raises(ZeroDivisionError):
        load(tmp_path / "own.jinja", LOOP)


def test_files_that_are_no_template(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is larger than 1,000,000 bytes"):
        load(tmp_path / "own.jinja", LOOP + " " * 1_000_000)
    (tmp_path / "bom.jinja").write_bytes(b"\xef\xbb\xbf" + LOOP.encode())
    config = RendererConfig(name="chat_template", template=str(tmp_path / "bom.jinja"))
    prompt = renderers.load(config, tokenizer_of("qwen3")).prompt([{"role": "user", "content": "1?"}])
    assert tokenizer_of("qwen3").decode(prompt) == "1?"  # no byte-order mark


def test_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "own.jinja").write_text("{{ 'x' * 10**9 }}" + LOOP)
    done = run_recipe("rl_basic", "renderer=chat_template", "renderer.template=own.jinja", cwd=tmp_path)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("error: renderer.template=own.jinja: ")
