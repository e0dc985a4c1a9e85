"""What engine=trl takes for granted of the pinned TRL: when it changes, a sentence says what to look at."""

from __future__ import annotations

import inspect

import pytest
import torch
import trl
from accelerate import PartialState
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from trl.generation.vllm_generation import VLLMGeneration
from trl.models.utils import unwrap_model_for_generation
from trl.trainer.utils import RepeatSampler, pad, shuffle_sequence_dict, split_tensor_dict

from rl.engines.trl.trainer import PolicyTrainer

SENTENCE = "TRL {version}: {what}; engine=trl relies on it: see 'Lifting the pin of TRL' in CONTRIBUTING.md"


OVERRIDDEN = {
    "_generate_and_score_completions", "_compute_loss", "_get_grad_norm", "_send_telemetry", "create_optimizer", "log",
}  # fmt: skip


def expect(condition: bool, what: str) -> None:
    assert condition, SENTENCE.format(version=trl.__version__, what=what)


def test_the_pin():
    expect(trl.__version__.startswith("1.16."), "is not the 1.16 that this engine was written for")


@pytest.mark.parametrize(
    ("owner", "name", "parameters"),
    [
        # overridden
        (GRPOTrainer, "_generate_and_score_completions", ["self", "inputs"]),
        (GRPOTrainer, "_compute_loss", ["self", "model", "inputs"]),
        (GRPOTrainer, "_get_grad_norm", ["self", "model", "grad_norm"]),
        (GRPOTrainer, "_send_telemetry", ["self"]),
        (GRPOTrainer, "create_optimizer", ["self", "model"]),
        (GRPOTrainer, "log", ["self", "logs", "start_time"]),
        # called
        (GRPOTrainer, "_get_per_token_logps_and_entropies", ["self", "model", "input_ids", "attention_mask", "logits_to_keep"]),
        (GRPOTrainer, "save_model", ["self", "output_dir", "_internal_call"]),
        (GRPOTrainer, "_save_optimizer_and_scheduler", ["self", "output_dir"]),
        (VLLMGeneration, "generate", ["self", "prompts", "images", "num_generations"]),
        (VLLMGeneration, "sync_weights", ["self"]),
        (VLLMGeneration, "_iter_named_params", ["self"]),
        (VLLMGeneration, "_fix_param_name_to_vllm", ["self", "name"]),
        (RepeatSampler, "__init__", ["self", "data_source", "mini_repeat_count", "batch_size", "repeat_count", "shuffle"]),
    ],
)  # fmt: skip
def test_methods_and_their_arguments(owner, name, parameters):
    expect(hasattr(owner, name), f"{owner.__name__}.{name} is gone")
    found = list(inspect.signature(getattr(owner, name)).parameters)
    expect(
        found[: len(parameters)] == parameters,
        f"{owner.__name__}.{name} takes {found}, not {parameters}, ...",
    )


def test_what_is_overridden_is_what_the_trainer_calls():
    """An override of a method that TRL has renamed would train with TRL's own loss, silently."""
    own = {name for name, value in vars(PolicyTrainer).items() if inspect.isfunction(value)}
    overridden = {name for name in own if hasattr(GRPOTrainer, name)} - {"__init__"}
    differing = sorted(overridden ^ OVERRIDDEN)
    expect(not differing, f"GRPOTrainer has lost or won methods of the names {differing}")
    calls = {
        "_prepare_inputs": [
            "self._generate_and_score_completions(",
            "shuffle_sequence_dict(",
            "split_tensor_dict(",
        ],
        "compute_loss": ["self._compute_loss(model, inputs)"],
        "get_train_dataloader": ["self._get_train_sampler", "self.args.steps_per_generation"],
    }
    for method, wanted in calls.items():
        source = inspect.getsource(getattr(GRPOTrainer, method))
        for call in wanted:
            expect(call in source, f"GRPOTrainer.{method} no longer has {call}")
    expect(
        GRPOTrainer.loss_is_scaled_for_ga is True,
        "the Trainer divides the loss by the accumulated micro-batches",
    )


def test_vllm_reads_what_it_is_told_before_each_batch():
    source = inspect.getsource(VLLMGeneration)
    for name in ("temperature", "max_completion_length", "generation_kwargs"):
        expect(source.count(f"self.{name}") > 1, f"VLLMGeneration does not read {name} any more")
    expect("self._iter_named_params()" in source, "sync_weights sends something else than _iter_named_params")


def test_the_batch_of_trl_has_the_keys_of_ours():
    source = inspect.getsource(GRPOTrainer._generate_and_score_completions)
    for key in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "sampling_per_token_logps"):
        expect(f'"{key}"' in source, f"_generate_and_score_completions has no {key} any more")


def test_a_batch_is_shuffled_and_split_by_its_rows():
    torch.manual_seed(0)
    batch = {"row": torch.arange(6), "completion_ids": torch.arange(12).view(6, 2)}
    parts = split_tensor_dict(shuffle_sequence_dict(batch), 3)
    rows = torch.cat([part["row"] for part in parts])
    expect(sorted(rows.tolist()) == list(range(6)) and len(parts) == 3, "split_tensor_dict loses rows")
    expect(all((part["completion_ids"][:, 0] == 2 * part["row"]).all() for part in parts), "rows come apart")


def test_the_sampler_repeats_a_row_for_each_rollout_and_micro_batch():
    sampler = RepeatSampler(Dataset.from_dict({"prompt": ["", ""]}), 3, repeat_count=2, shuffle=False)
    expect(list(sampler) == [0] * 6 + [1] * 6, f"RepeatSampler gives {list(sampler)}")
    expect(
        "shuffle=self.shuffle_dataset" in inspect.getsource(GRPOTrainer._get_train_sampler),
        "it shuffles steps",
    )


def test_padding_has_a_side():
    padded = pad([torch.tensor([1]), torch.tensor([2, 3])], 9, "left")
    expect(padded.tolist() == [[9, 1], [2, 3]], f"pad gives {padded.tolist()}")


@pytest.fixture
def trainer(tiny_random_model, tmp_path):
    model, tokenizer = tiny_random_model()
    PartialState(cpu=True)

    class Untold(GRPOTrainer):
        def _send_telemetry(self):
            pass

    args = GRPOConfig(
        output_dir=str(tmp_path), per_device_train_batch_size=2, gradient_accumulation_steps=2, num_generations=4, max_steps=1,
        use_cpu=True, bf16=False, report_to="none", gradient_checkpointing=False, temperature=0.5,
    )  # fmt: skip
    return Untold(
        model, [lambda **_: []], args, Dataset.from_dict({"prompt": [""]}), processing_class=tokenizer
    )


def test_attributes(trainer):
    for name in ("_dist", "_tokenizer", "num_iterations", "use_vllm", "model_wrapped"):
        expect(hasattr(trainer, name), f"GRPOTrainer has no attribute {name} any more")
    expect(trainer.args.steps_per_generation == 2, "steps_per_generation no longer follows the accumulation")
    for name in ("vllm_generation", "_last_loaded_step"):
        expect(
            f"self.{name} =" in inspect.getsource(GRPOTrainer.__init__),
            f"GRPOTrainer sets no {name} any more",
        )


def test_log_probabilities_are_those_at_the_temperature(trainer):
    """At temperature 0.5, and of the completion's tokens only."""
    tokens = torch.tensor([[5, 6, 7, 8, 9]])
    found, *rest = trainer._get_per_token_logps_and_entropies(
        trainer.model, tokens, torch.ones_like(tokens), 2
    )
    expect(len(rest) == 2, f"_get_per_token_logps_and_entropies returns {len(rest) + 1} values, not 3")
    logits = trainer.model(tokens).logits[0, 2:4] / 0.5
    wanted = logits.log_softmax(-1)[[0, 1], [8, 9]]
    expect(
        torch.allclose(found[0], wanted, atol=1e-5), "its log-probabilities are not those at the temperature"
    )


def test_the_policy_samples_without_dropout(trainer):
    trainer.model.train()
    with PolicyTrainer.whole_model(trainer) as model:
        assert model is trainer.model and not any(module.training for module in model.modules())


def test_generation_gets_the_unwrapped_model(trainer):
    trainer.model.train()
    with unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator) as model:
        expect(model is trainer.model, "unwrap_model_for_generation gives another model")
