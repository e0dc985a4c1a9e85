"""Every loss that TRL has too, against TRL's own code on the same tensors."""

from __future__ import annotations

import pytest
import torch

from rl.losses.cispo import CISPO
from rl.losses.dapo import DAPO
from rl.losses.dr_grpo import DrGRPO
from rl.losses.grpo import GRPO
from rl.losses.gspo import GSPO
from rl.losses.kl import token_kl
from rl.losses.rloo import RLOO
from tests.unit.test_losses import coefficients, mask_of

SEQUENCE = {"importance_sampling_level": "sequence", "loss_type": "grpo"}


@pytest.mark.parametrize(
    ("loss", "theirs"),
    [
        (GRPO(), {}),
        (DrGRPO(), {}),
        (DAPO(), {}),
        (CISPO(clip_high=0.1), {"epsilon_high": 1.1}),  # TRL's bound is the ratio itself
        (GSPO(clip_low=0.05, clip_high=0.1), SEQUENCE),
        (GSPO(), SEQUENCE),
        (GRPO(kl_beta=0.04), {}),
        (DrGRPO(kl_beta=0.3), {}),
        (DAPO(kl_beta=0.3), {}),
        (CISPO(kl_beta=0.3), {"epsilon_high": 5.0}),
    ],
)
def test_parity_with_trl(loss, theirs, tmp_path, tiny_random_model):
    """TRL's own `_compute_loss` on the same tensors: loss and gradient, the KL penalty included."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    clip = {"epsilon": getattr(loss, "clip_low", 0.2), "epsilon_high": loss.clip_high, "loss_type": loss.name}
    model, tokenizer = tiny_random_model()
    trainer = GRPOTrainer(
        model=model, processing_class=tokenizer, reward_funcs=lambda completions, **_: [0.0] * len(completions),
        train_dataset=Dataset.from_dict({"prompt": ["a"] * 4}),
        args=GRPOConfig(
            output_dir=str(tmp_path), beta=0.0, max_completion_length=10, num_generations=4, **(clip | theirs),
            per_device_train_batch_size=4, bf16=False, report_to="none", use_cpu=True, gradient_checkpointing=False,
            use_bias_correction_kl=False,
        ),
    )  # fmt: skip
    trainer.beta = loss.kl_beta  # given to the config, it would load a second model from the Hub
    torch.manual_seed(0)
    lengths, rewards = [3, 6, 2, 5], [1.0, 0.1, 0.0, 0.9]
    behavior = -torch.rand(4, 6) * 2
    start = behavior + torch.randn(4, 6) * 0.3
    reference = behavior + torch.randn(4, 6) * 0.3
    advantages = loss.advantages(rewards, [0] * 4)

    current = start.clone().requires_grad_()
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (current, torch.zeros(4, 6), None)
    trainer.current_gradient_accumulation_steps = 1
    ids = torch.ones(4, 6, dtype=torch.long)
    their_loss = trainer._compute_loss(
        trainer.model.train(),
        {
            "prompt_ids": ids, "prompt_mask": ids, "completion_ids": ids, "completion_mask": mask_of(lengths).long(),
            "advantages": torch.tensor(advantages), "old_per_token_logps": behavior, "num_items_in_batch": torch.tensor(sum(lengths)),
            "ref_per_token_logps": reference,
        },
    )  # fmt: skip
    their_loss.backward()

    ours, mask = start.clone().requires_grad_(), mask_of(lengths)
    coef = coefficients(loss, rewards, [0] * 4, lengths, 10)
    kl_weights = torch.tensor(loss.kl_weights(lengths, 10))[:, None] * mask
    our_loss = (
        loss.surrogate(ours, behavior, coef, mask).loss + (kl_weights * token_kl(ours, reference)).sum()
    )
    our_loss.backward()
    assert our_loss.item() == pytest.approx(their_loss.item(), abs=1e-6)
    assert torch.allclose(ours.grad, current.grad, atol=1e-6)
    assert ours.grad.abs().max() > 1e-3


def test_on_policy_gradient_of_rloo_is_that_of_trl(tmp_path, tiny_random_model):
    """TRL clips one ratio a sequence; on policy the two objectives have the same gradient."""
    from datasets import Dataset
    from trl import RLOOConfig, RLOOTrainer

    model, tokenizer = tiny_random_model()
    trainer = RLOOTrainer(
        model=model, processing_class=tokenizer, reward_funcs=lambda completions, **_: [0.0] * len(completions),
        train_dataset=Dataset.from_dict({"prompt": ["a"] * 4}),
        args=RLOOConfig(
            output_dir=str(tmp_path), beta=0.0, max_completion_length=10, num_generations=4, per_device_train_batch_size=4,
            bf16=False, report_to="none", use_cpu=True, gradient_checkpointing=False,
        ),
    )  # fmt: skip
    lengths, rewards = [3, 6, 2, 5], torch.tensor([1.0, 0.1, 0.0, 0.9])
    behavior, mask, ids = -torch.rand(4, 6), mask_of(lengths), torch.ones(4, 6, dtype=torch.long)
    current = behavior.clone().requires_grad_()
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (current, torch.zeros(4, 6), None)
    trainer._compute_loss(
        trainer.model.train(),
        {
            "prompt_ids": ids, "prompt_mask": ids, "completion_ids": ids, "completion_mask": mask.long(),
            "advantages": rewards - (rewards.sum() - rewards) / 3, "old_logps": (behavior * mask).sum(-1),
        },
    ).backward()  # fmt: skip
    ours, loss = behavior.clone().requires_grad_(), RLOO()
    loss.surrogate(
        ours, behavior, coefficients(loss, rewards.tolist(), [0] * 4, lengths, 10), mask
    ).loss.backward()
    assert torch.allclose(ours.grad, current.grad, atol=1e-6) and ours.grad.abs().max() > 0.1
