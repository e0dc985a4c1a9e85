"""The options of `engine=molt`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rl.errors import UserError

POSITIVE = (
    "actor_nodes",
    "actor_gpus",
    "rollout_gpus",
    "rollout_tensor_parallel",
    "tensor_parallel",
    "context_parallel",
    "expert_parallel",
    "queue",
    "runners",
    "microbatch_rows",
)
OPTIONAL = ("in_flight", "max_len", "max_call_tokens")
PACKED_ATTENTION = ("flash_attention_2", "te", "tilelang")  # the kernels that packed rows need


@dataclass(frozen=True, kw_only=True)
class MoltOptions:
    """python: the interpreter of the environment that has Molt; None: this one.

    ray: `connect` uses a running cluster; `start` lets the job start one of its own on this machine and end it.
    actor_gpus: GPUs of each of `actor_nodes` nodes that train. rollout_gpus: GPUs that sample, on all nodes together.
    tensor_parallel, context_parallel, expert_parallel: of the trained model. rollout_*: of each vLLM engine.
    in_flight: requests at once; None: a batch. queue: finished batches that may wait for the learner.
    synchronous: sample a batch only after the weights of the one before it have been sent.
    runners: processes that hold conversations and score them. max_len: tokens of a prompt and all that follows; None:
    data.max_prompt_tokens + max_tokens. max_call_tokens: sampled tokens of one turn; None: max_tokens.
    microbatch_rows: rows per forward and backward pass of a device. gpu_memory: share of a GPU that vLLM uses.
    loss_agg_mode: Molt's mean over tokens and rollouts; None: the loss's own. eval_top_p: of evaluations.
    flags: more of Molt's flags by name, without the dashes; true for a flag without a value, null or false to leave it out.
    """

    python: str | None = None
    ray: Literal["connect", "start"] = "connect"
    actor_nodes: int = 1
    actor_gpus: int = 1
    rollout_gpus: int = 7
    rollout_tensor_parallel: int = 1
    rollout_expert_parallel: bool = False
    tensor_parallel: int = 1
    context_parallel: int = 1
    expert_parallel: int = 1
    in_flight: int | None = None
    queue: int = 1
    synchronous: bool = False
    runners: int = 2
    max_len: int | None = None
    max_call_tokens: int | None = None
    microbatch_rows: int = 1
    gradient_checkpointing: Literal["full", "selective", "none"] = "full"
    attn_implementation: Literal["flash_attention_2", "te", "tilelang", "sdpa", "eager"] = "flash_attention_2"
    packing: bool = True
    gpu_memory: float = 0.9
    loss_agg_mode: Literal["token-mean", "seq-mean-token-mean", "prompt-mean-token-mean"] | None = None
    eval_top_p: float = 1.0
    flags: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in (*POSITIVE, *OPTIONAL):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"engine.{name}={value}: expected a positive integer; e.g. engine.{name}=1")
        if self.rollout_gpus % self.rollout_tensor_parallel:
            raise UserError(
                f"engine.rollout_tensor_parallel={self.rollout_tensor_parallel}: does not divide"
                f" engine.rollout_gpus={self.rollout_gpus}; e.g. engine.rollout_tensor_parallel=1"
            )
        if self.actor_world % self.model_parallel:
            raise UserError(
                f"engine.tensor_parallel={self.tensor_parallel}, engine.context_parallel={self.context_parallel}: a copy of the"
                f" model takes {self.model_parallel} GPUs, which does not divide the {self.actor_world} that train"
                " (engine.actor_nodes x engine.actor_gpus)"
            )
        if self.actor_world % self.expert_parallel:
            raise UserError(
                f"engine.expert_parallel={self.expert_parallel}: does not divide the {self.actor_world} GPUs that train"
                " (engine.actor_nodes x engine.actor_gpus); e.g. engine.expert_parallel=1"
            )
        if not 0 < self.gpu_memory < 1:
            raise UserError(f"engine.gpu_memory={self.gpu_memory}: expected a share in (0, 1); e.g. 0.9")
        if not 0 < self.eval_top_p <= 1:
            raise UserError(f"engine.eval_top_p={self.eval_top_p}: expected a share in (0, 1]; e.g. 0.95")
        if self.packing and self.attn_implementation not in PACKED_ATTENTION:
            raise UserError(
                f"engine.attn_implementation={self.attn_implementation}: packed rows need one of"
                f" {', '.join(PACKED_ATTENTION)}; type engine.packing=false, or one of these"
            )

    @property
    def actor_world(self) -> int:
        """GPUs that train."""
        return self.actor_nodes * self.actor_gpus

    @property
    def model_parallel(self) -> int:
        """GPUs that share one row of a batch."""
        return self.tensor_parallel * self.context_parallel

    @property
    def engines(self) -> int:
        """vLLM engines."""
        return self.rollout_gpus // self.rollout_tensor_parallel

    @property
    def more_flags(self) -> dict[str, Any]:
        """`flags` with dotted names: Hydra nests what is typed as engine.flags.vllm.enforce_eager=true."""
        return dict(_flat(self.flags, ""))


def _flat(node: Mapping[str, Any], prefix: str) -> list[tuple[str, Any]]:
    found = []
    for name, value in node.items():
        key = f"{prefix}{name}"
        found += _flat(value, f"{key}.") if isinstance(value, Mapping) else [(key, value)]
    return found
