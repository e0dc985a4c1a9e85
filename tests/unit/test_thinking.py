"""`thinking_tokens`: two passes, the forced close tag between them, and what is graded, trained and measured."""

from __future__ import annotations

import pytest

import renderers
from environments.single_turn import SingleTurnConfig
from renderers.base import RendererConfig
from rl.budget import check_thinking_tokens
from rl.collecting import roll_out
from rl.engines.base import Sampler, SamplingParams
from rl.engines.local.learner import LocalLearner
from rl.engines.local.sampler import sample as local_sample
from rl.errors import Stopped, UserError
from rl.evaluation.measures import within
from rl.losses.base import weigh
from rl.losses.flashreinforce import FlashReinforce
from rl.losses.grpo import GRPO
from rl.metrics import thinking_metrics, thinking_tokens
from rl.optimizer import OptimizerConfig
from rl.rollouts import Completion, Problem, Rollout, conversation
from rl.seeds import derived_seed
from rl.task import Task, require_reasoning
from tests.helpers.models import chatml_tokenizer, random_model
from tests.helpers.renderer_families import FAMILIES, tokenizer_of

TOKENIZER = chatml_tokenizer()
RENDERER = renderers.load(RendererConfig(name="qwen3"), TOKENIZER)
CLOSE = TOKENIZER.convert_tokens_to_ids("</think>")


def ids(text: str) -> list[int]:
    """One id a letter, one a tag."""
    return TOKENIZER.encode(text, add_special_tokens=False)


class Scripted(Sampler):
    """Writes `texts` in the first call and `rests` in the second, each up to its limit; None fails. Notes its calls."""

    def __init__(self, *texts: str, rests: tuple[str | None, ...] = ()) -> None:
        self.scripts = [texts, rests]
        self.calls: list[tuple[list[list[int]], int, SamplingParams]] = []

    def sample(self, prompts, n, params, arrived=None):
        script = self.scripts[len(self.calls)]
        self.calls.append(([list(prompt) for prompt in prompts], n, params))
        assert len(script) == n * len(prompts)
        return [
            [
                self.completion(text, params.limit(p))
                for text in script[p * n : (p + 1) * n]
                if text is not None
            ]
            for p in range(len(prompts))
        ]

    def completion(self, text: str, limit: int) -> Completion:
        tokens = ids(text)
        cut = tokens[:limit]
        logprobs = [-0.5 * (i + 1) for i in range(len(cut))]
        return Completion(cut, logprobs, "stop" if len(tokens) <= limit else "length", [1.0] * len(cut))


def collected(
    sampler: Sampler, budget: int = 12, thinking: int = 4, n: int = 1, context: int | None = None
) -> list[Rollout]:
    problems = [Problem(str(i), "q", "5", "en", "test") for i in range(len(sampler.scripts[0]) // n)]
    task = Task(
        lambda p: [{"role": "user", "content": p.question}], RENDERER, SingleTurnConfig(), context, thinking
    )
    return roll_out(sampler, task, problems, n, SamplingParams(budget, 1.0, RENDERER.stop_ids, seed=3))


def test_a_reasoning_that_reaches_its_budget_is_closed_and_the_answer_gets_the_rest():
    """<think>abcdef: 4 of 12 tokens are sampled, then 8 are left."""
    sampler = Scripted("<think>abcdef", rests=("xy<|im_end|>",))
    (rollout,) = collected(sampler)
    (first, _, asked), (second, each, rest) = sampler.calls
    assert (asked.max_tokens, asked.limits, asked.seed, asked.seeds) == (4, [4], 3, ())
    assert second == [[*first[0], *ids("<think>abc</think>")]] and each == 1
    assert (rest.max_tokens, rest.limits, rest.seeds) == (8, [8], [derived_seed(3, "answer", 0)])
    assert [turn.prompt_tokens for turn in rollout.turns] == [first[0], [CLOSE]]
    assert [turn.completion.tokens for turn in rollout.turns] == [ids("<think>abc"), ids("xy<|im_end|>")]
    assert rollout.forced and not rollout.truncated and rollout.ended == "answered"
    assert (rollout.length, rollout.context) == (7, len(first[0]) + 8)


def test_the_whole_is_graded():
    (rollout,) = collected(Scripted("<think>abcdef", rests=("xy<|im_end|>",)))
    parsed = rollout.parsed
    assert (parsed.thinking, parsed.text, parsed.raw) == ("abc", "xy", "<think>abc</think>xy")
    assert (parsed.ended, parsed.unfinished) == ("stop", False)
    assert conversation(rollout)[-1]["text"] == "xy"


def test_forced_tokens_are_read_but_not_trained():
    """T_n = 4 + 3. FlashREINFORCE: (R - 1/2) / (2 T_n). The close tag has no log-probability and no coefficient."""
    rollouts = collected(Scripted("<think>abcdef", "z<|im_end|>", rests=("xy<|im_end|>",)))
    rollouts[0].reward = 1.0
    row, other = weigh(rollouts, FlashReinforce(), 12)
    assert row.response_tokens == ids("<think>abc</think>xy<|im_end|>")
    assert row.mask == [True] * 4 + [False] + [True] * 3
    assert row.behavior_logprobs == [-0.5, -1.0, -1.5, -2.0, 0.0, -0.5, -1.0, -1.5]
    assert row.coefficients == pytest.approx([1 / 28] * 4 + [0] + [1 / 28] * 3)
    assert other.coefficients == pytest.approx([-1 / 8] * 2)
    assert rollouts[0].completion.entropies == [1.0] * 7


def test_grpo_divides_by_sampled_tokens():
    rollouts = collected(
        Scripted("<think>abcdef", "z<|im_end|>", n := "x<|im_end|>", n, rests=("xy<|im_end|>",)), n=2
    )
    rollouts[0].reward = 1.0
    row = weigh(rollouts, GRPO(), 12)[0]
    assert len({c for c, sampled in zip(row.coefficients, row.mask, strict=True) if sampled}) == 1
    assert row.coefficients[4] == 0 and sum(row.coefficients) == pytest.approx(7 * row.coefficients[0])


def test_a_reasoning_that_closes_itself_is_one_turn_and_goes_on_without_forced_tokens():
    """The split at 4 tokens falls into the answer: the second pass continues it, and nothing shows where."""
    sampler = Scripted("<think>a</think>5678", rests=("678<|im_end|>",))
    (rollout,) = collected(sampler)
    assert sampler.calls[1][0] == [[*sampler.calls[0][0][0], *ids("<think>a</think>5")]]
    (turn,) = rollout.turns
    assert turn.completion == Completion(
        ids("<think>a</think>5678<|im_end|>"), [-0.5, -1, -1.5, -2, -0.5, -1, -1.5, -2], "stop", [1.0] * 8
    )
    assert (rollout.parsed.thinking, rollout.parsed.text) == ("a", "5678")
    assert not rollout.forced and rollout.length == 8


@pytest.mark.parametrize(
    ("text", "rest", "forced", "thinking", "answer"),
    [
        ("<think>ab</think>cd", "cd<|im_end|>", False, "ab", "cd"),  # closed with its last token
        ("abcdefg", "efg<|im_end|>", False, "", "abcdefg"),  # answers without a reasoning
        ("<think>ab<|im_end|>", None, False, "ab", ""),  # ends inside its reasoning
        ("a</think><think>bc", "c<|im_end|>", True, "b", "c"),  # opened a second time
    ],
)
def test_where_the_budget_falls(text, rest, forced, thinking, answer):
    (rollout,) = collected(Scripted(text, rests=() if rest is None else (rest,)))
    assert (rollout.forced, rollout.parsed.thinking, rollout.parsed.text) == (forced, thinking, answer)


def test_an_answer_that_the_budget_cuts():
    (rollout,) = collected(Scripted("<think>abcdef", rests=("uvwxyz",)), budget=7)
    assert rollout.truncated and rollout.length == 7
    assert (rollout.parsed.text, rollout.parsed.ended) == ("uvw", "length")


def test_random_numbers_depend_on_the_place_in_the_batch_only():
    both = Scripted("<think>abcdef", "<think>abcdef", rests=("x<|im_end|>", "x<|im_end|>"))
    alone = Scripted("<think><|im_end|>", "<think>abcdef", rests=("x<|im_end|>",))
    collected(both), collected(alone)
    assert alone.calls[1][2].seeds == both.calls[1][2].seeds[1:]
    assert len(set(both.calls[1][2].seeds)) == 2


def test_no_second_pass_where_every_completion_has_ended():
    sampler = Scripted("5<|im_end|>")
    assert [r.ended for r in collected(sampler)] == ["answered"] and len(sampler.calls) == 1


def test_a_failed_second_pass_drops_its_whole_problem():
    texts = ("<think>abcdef", "x<|im_end|>", "y<|im_end|>", "<think>abcdef")
    kept = collected(Scripted(*texts, rests=(None, "z<|im_end|>")), n=2)
    assert [(r.group, r.parsed.text) for r in kept] == [(1, "y"), (1, "z")]
    with pytest.raises(Stopped, match="no completions for any of the 1 problems"):
        collected(Scripted("<think>abcdef", rests=(None,)))


def test_smaller_budgets_are_read_off():
    """Both turns are cut; the parse is of what is left of the whole."""
    rollouts = collected(
        Scripted("<think>abcdef", "<think>a</think>5678", rests=("uvw<|im_end|>", "678<|im_end|>"))
    )
    forced, own = within(rollouts, 6, RENDERER)
    assert (forced.parsed.thinking, forced.parsed.text, forced.truncated) == ("abc", "uv", True)
    assert (forced.forced, forced.length, forced.turns[1].prompt_tokens) == (True, 6, [CLOSE])
    assert (own.parsed.text, own.length, own.truncated) == ("567", 6, True)
    same = within(rollouts, 12, RENDERER)
    assert [r.parsed for r in same] == [r.parsed for r in rollouts]


def test_metrics():
    """The forced reasoning has 4 tokens; of `<think>a</think>5678`, 1 of 20 characters is reasoning."""
    rollouts = collected(
        Scripted("<think>abcdef", "<think>a</think>5678", rests=("uvw<|im_end|>", "678<|im_end|>"))
    )
    assert thinking_metrics(rollouts) == {"thinking/forced": 0.5}
    assert [thinking_tokens(r) for r in rollouts] == pytest.approx([4, 8 * 1 / 20])


def test_the_close_tag_needs_room_in_the_context():
    prompt = len(RENDERER.prompt([{"role": "user", "content": "q"}]))
    texts = {"rests": ("x<|im_end|>",)}
    assert collected(Scripted("<think>abcdef", **texts), context=prompt + 1 + 12)
    with pytest.raises(
        UserError, match=f"max_tokens=12: .* {prompt + 1} tokens.*type a budget of at most 11"
    ):
        collected(Scripted("<think>abcdef", **texts), context=prompt + 12)


@pytest.mark.parametrize(
    ("family", "name", "closes"),
    [
        ("qwen3", "qwen3", True),
        ("qwen3", "qwen3_disable_thinking", False),
        ("qwen3", "chat_template", True),
        ("qwen3-2507", "chat_template", False),  # an instruct model that never thinks
        ("qwen3.5", "qwen3", True),
        ("qwen3.5-small", "qwen3_disable_thinking", False),
        ("deepseek", "chat_template", True),
        ("qwen2.5", "qwen2", False),
        ("llama3.2", "llama3", False),
        ("base", "role_colon", False),
    ],
)
def test_formats_with_a_reasoning(family, name, closes):
    tokenizer = tokenizer_of(family)
    renderer = renderers.load(RendererConfig(name=name), tokenizer)
    expected = [tokenizer.convert_tokens_to_ids("</think>")] if closes else []
    assert list(renderer.think_close) == expected and family in FAMILIES
    if not closes:
        with pytest.raises(UserError, match=f"thinking_tokens=8: renderer={name} has no reasoning"):
            require_reasoning(renderer, 8)
    require_reasoning(renderer, None)


def test_the_reasonings_budget_is_smaller_than_every_budget():
    check_thinking_tokens(None, {"max_tokens": [1]}, SingleTurnConfig())
    check_thinking_tokens(63, {"max_tokens": [64]}, SingleTurnConfig())
    for tokens in (0, 64, 65):
        with pytest.raises(UserError, match=f"thinking_tokens={tokens}: expected"):
            check_thinking_tokens(tokens, {"max_tokens": [64]}, SingleTurnConfig())


# -- on a random model -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def random_policy():
    """A function (budget, thinking) -> rollouts of a random model whose prompts open the reasoning; and its learner."""
    model, tokenizer = random_model()
    tokenizer.chat_template = tokenizer.chat_template.replace("{% endif %}{% endif %}", "{% else %}<think>\n{% endif %}{% endif %}")  # fmt: skip
    renderer = renderers.load(RendererConfig(name="qwen3"), tokenizer)
    problems = [Problem(str(i), "q" * i, "5", "en", "test") for i in range(1, 4)]

    class Local(Sampler):
        def sample(self, prompts, n, params, arrived=None):
            return local_sample(model, prompts, n, params, 2**30)

    def rollouts(budget: int, thinking: int) -> list[Rollout]:
        task = Task(
            lambda p: [{"role": "user", "content": p.question}], renderer, SingleTurnConfig(), None, thinking
        )
        return roll_out(Local(), task, problems, 4, SamplingParams(budget, 1.0, renderer.stop_ids, seed=3))

    return rollouts, renderer, LocalLearner(model, OptimizerConfig(), 1.0, 10_000)


def tokens_of(rollouts: list[Rollout]) -> list[tuple]:
    return [([(t.prompt_tokens, t.completion.tokens) for t in r.turns], r.ended, r.parsed) for r in rollouts]


def test_a_budget_read_off_is_that_budget_sampled(random_policy):
    rollouts, renderer, _ = random_policy
    wide = rollouts(20, 6)
    assert any(r.forced for r in wide)
    for budget in (7, 12, 20):
        assert tokens_of(within(wide, budget, renderer)) == tokens_of(rollouts(budget, 6))


def test_the_reasonings_of_a_smaller_budget_are_the_same_so_far(random_policy):
    rollouts, _, _ = random_policy
    for long, short in zip(rollouts(20, 9), rollouts(20, 5), strict=True):
        assert long.completion.tokens[:5] == short.completion.tokens[:5]


def test_the_learner_gives_the_tokens_after_the_tag_the_samplers_log_probabilities(random_policy):
    rollouts, _, learner = random_policy
    rows = weigh(rollouts(20, 6), FlashReinforce(), 20)
    assert any(not all(row.mask) for row in rows)
    for row, logprobs in zip(rows, learner.logprobs(rows), strict=True):
        assert logprobs == pytest.approx(list(row.behavior_logprobs), abs=1e-4)
