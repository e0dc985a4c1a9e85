"""The optimiser and the learning rate of each step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rl.errors import UserError
from rl.models.quantization import require_bitsandbytes

if TYPE_CHECKING:
    from torch.nn import Parameter
    from torch.optim import Optimizer


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW (arXiv:1711.05101) and its schedule.

    name: `adamw_8bit` keeps its two moments in 8 bits (arXiv:2110.02861), through bitsandbytes.
    schedule: `constant`, or `linear` / `cosine` decay from the learning rate towards `final_ratio` times it. The end
    value belongs to the step after the last (as in transformers), so the last step still moves the weights.
    warmup: share of all steps over which the rate rises linearly. max_grad_norm: inf turns clipping off.
    """

    name: Literal["adamw", "adamw_8bit"] = "adamw"
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup: float = 0.0
    final_ratio: float = 0.0
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    max_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        if self.name == "adamw_8bit":
            require_bitsandbytes("optimizer.name=adamw_8bit", "optimizer.name=adamw")
        if not 0 <= self.warmup < 1:
            raise UserError(
                f"optimizer.warmup={self.warmup}: expected a share of the steps in [0, 1); e.g. 0.03"
            )
        if not 0 <= self.final_ratio <= 1:
            raise UserError(f"optimizer.final_ratio={self.final_ratio}: expected a share in [0, 1]; e.g. 0.1")
        if not self.max_grad_norm > 0:
            raise UserError(
                f"optimizer.max_grad_norm={self.max_grad_norm}: expected a positive number; e.g. 1.0"
            )
        if not all(0 <= beta < 1 for beta in self.betas):
            raise UserError(
                f"optimizer.betas={list(self.betas)}: expected two numbers in [0, 1); e.g. [0.9,0.95]"
            )
        if not 0 <= self.eps < math.inf:
            raise UserError(f"optimizer.eps={self.eps}: expected 0 or more; e.g. 1e-8")
        if not 0 <= self.weight_decay < math.inf:
            raise UserError(f"optimizer.weight_decay={self.weight_decay}: expected 0 or more; e.g. 0.1")

    def over(self, parameters: list[Parameter]) -> Optimizer:
        """The optimiser of these parameters; each step sets its own learning rate."""
        options = {"betas": self.betas, "eps": self.eps, "weight_decay": self.weight_decay}
        if self.name == "adamw_8bit":
            from bitsandbytes.optim import AdamW8bit

            return AdamW8bit(parameters, **options)
        from torch.optim import AdamW

        return AdamW(parameters, fused=True, **options)  # type: ignore[arg-type]

    @property
    def needs_steps(self) -> str:
        """The choice that divides the run by its number of steps, as typed; "" for a constant learning rate."""
        if self.schedule != "constant":
            return f"optimizer.schedule={self.schedule}"
        return f"optimizer.warmup={self.warmup}" if self.warmup else ""

    def rate(self, peak: float, step: int, total_steps: int) -> float:
        """The learning rate of `step` (1-based) of `total_steps`; `peak` is reached when the warm-up ends."""
        warmup_steps = round(self.warmup * total_steps)
        if step <= warmup_steps:
            return peak * step / (warmup_steps + 1)
        progress = (step - 1 - warmup_steps) / (total_steps - warmup_steps)
        if self.schedule == "linear":
            return peak * (1 - (1 - self.final_ratio) * progress)
        if self.schedule == "cosine":
            return peak * (self.final_ratio + (1 - self.final_ratio) * (1 + math.cos(math.pi * progress)) / 2)
        return peak
