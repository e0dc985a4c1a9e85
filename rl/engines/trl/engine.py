"""`engine=trl`: one policy on all processes of a launch, trained by TRL's trainer."""

from __future__ import annotations

import gc
import os
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate.utils import gather_object
from trl import GRPOConfig

from rl.blueprint import Blueprint
from rl.engines.base import Arrived, Driver, Sampler, SamplingParams, Steps
from rl.engines.launch import world_size
from rl.engines.local.memory import default_kv_gb
from rl.engines.local.precision import sampling_in
from rl.engines.local.sampler import sample
from rl.engines.trl.options import TrlOptions
from rl.engines.trl.ranks import Ranks, Released
from rl.engines.trl.trainer import PolicyTrainer
from rl.engines.trl.vllm import complete, require_server
from rl.errors import UserError, first_line
from rl.models.adapters import base_facts, require_run_base, write_base
from rl.models.compatibility import require_context, require_vocabulary
from rl.models.device import memory_errors, resolve_device
from rl.models.loading import add_lora, read_model
from rl.rollouts import Completion
from rl.signals import Interrupted

SHARDING = "sharding.txt"  # in a checkpoint: the sharding it was saved under
PATIENCE = 3 * 3600  # seconds that processes wait while rank 0 loads data, evaluates or grades


class TrlPolicy(Sampler, Driver):
    """Sampler and driver of one policy, one instance per process, led by rank 0 (rl/engines/trl/ranks.py)."""

    def __init__(self, options: TrlOptions, blueprint: Blueprint, tokenizer: Any) -> None:
        # TRL 1.16 and DeepSpeed use deprecated names of other libraries; users cannot do anything about it.
        warnings.filterwarnings("ignore", category=FutureWarning, module="transformers|torch")
        transformers.logging.set_verbosity_error()  # it warns about tied weights at each resume
        self.options, self.blueprint, self.tokenizer = options, blueprint, tokenizer
        self.args = trainer_arguments(options, blueprint)
        self.ranks = Ranks(self)
        if self._sharding() == "FSDP" and self.args.device.type == "cpu":
            raise UserError(
                "the accelerate config asks for FSDP, which shards weights on GPUs only; start with conf/accelerate/ddp.yaml"
            )
        require_our_optimizer(self.args.deepspeed_plugin)
        if options.vllm != "off" and blueprint.model.lora and self._sharding() == "FSDP":
            raise UserError(
                f"engine.vllm={options.vllm}: under FSDP an adapter cannot be sent to vLLM; type model.lora=null, or start with"
                " conf/accelerate/ddp.yaml"
            )
        if self.ranks.leads and options.vllm == "server":
            require_server(options.vllm_url, blueprint.model.source)
        on_gpu = self.args.device.type == "cuda"
        self.base, self.adapter = read_model(blueprint.model, options.attn_implementation, on_gpu), None
        require_vocabulary(self.base, tokenizer, blueprint.model.source)
        # Under ZeRO-3 every process has only a shard; under FSDP possibly only rank 0 has the weights.
        if self.ranks.leads or self._sharding().startswith("DeepSpeed"):
            self.base_facts = base_facts(self.base, tokenizer)
        if blueprint.model.lora:
            self.base, self.adapter = add_lora(self.base, blueprint.model.lora, False, blueprint.seed)
            if self.args.deepspeed_plugin and self.args.deepspeed_plugin.zero_stage == 3:
                self.adapter.to(self.base.dtype)  # ZeRO-3 gathers weights of one dtype (huggingface/trl#6089)
        self.trainer: PolicyTrainer
        self.steps: Steps | None = None
        self.checkpoint: Path | None = None

    def drive(self, steps: Steps) -> None:
        if (count := steps.problems) < self.blueprint.batch_size:
            raise UserError(
                f"batch_size={self.blueprint.batch_size}: there are {count} train problems, and engine=trl needs full"
                f" batches; type batch_size={count} or less"
            )
        self.steps = steps
        try:
            self.ranks.call("train", steps.total, self.checkpoint)
        except RuntimeError as error:
            if not re.search("[Cc]onnection (closed|reset)|NCCL|Broken pipe", str(error)):
                raise
            raise UserError(
                f"another process of this launch has ended; see its own output ({first_line(error)}); the same command"
                f" resumes from the last checkpoint in {steps.directory}"
            ) from error

    def train(self, total_steps: int, checkpoint: Path | None) -> None:
        """On each process: runs the trainer's loop, from `checkpoint` if there is one."""
        if self.steps:
            self.args.output_dir = str(self.steps.directory)
        self.trainer = PolicyTrainer(
            self.args,
            self.adapter or self.base,
            self.tokenizer,
            self.blueprint,
            self.ranks,
            self.steps,
            total_steps,
        )
        with memory_errors(f"engine.microbatch_rows={max(1, self.args.per_device_train_batch_size // 2)}"):
            self.trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)

    def follow(self) -> None:
        """On followers: runs what rank 0 calls, until rank 0 ends."""
        try:
            self.ranks.follow()
        except Released:
            return

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        params: SamplingParams,
        arrived: Arrived | None = None,
    ) -> list[list[Completion]]:
        """See `Sampler`. vLLM gets the weights first if they changed. `arrived` is never called."""
        if not params.limits:  # these are within the context
            require_context(self.base, prompts, params.max_tokens)
        shares = self.ranks.call("sample_share", prompts, n, params)
        for share in shares:
            if isinstance(share, UserError):
                raise share
            if isinstance(share, int):
                raise Interrupted(share)
        return [group for share in shares for group in share][: len(prompts)]

    def sample_share(
        self, prompts: Sequence[Sequence[int]], n: int, params: SamplingParams
    ) -> list[list[list[Completion]] | UserError | int]:
        """On each process: samples its share of the prompts; returns all shares, which have equal length for vLLM.

        A process that failed contributes its error, or the signal's number, in place of its share.
        """
        size = -(-len(prompts) // self.args.world_size)
        first = self.args.process_index * size
        share = [min(first + i, len(prompts) - 1) for i in range(size)]
        try:
            sampled: list[list[Completion]] | UserError | int = self._complete(
                [prompts[p] for p in share], n, params.of(share), first
            )
        except UserError as error:
            sampled = error
        except Interrupted as interrupt:
            sampled = interrupt.number
        return gather_object([sampled])

    def _complete(
        self, prompts: Sequence[Sequence[int]], n: int, params: SamplingParams, skip: int
    ) -> list[list[Completion]]:
        if self.options.vllm != "off":
            return complete(self.trainer.synced_vllm(), prompts, n, params)
        kv_gb = self.options.max_kv_gb or default_kv_gb(self.args.device)
        with (
            memory_errors(f"engine.max_kv_gb={kv_gb / 2:.2g}"),
            self.trainer.whole_model() as model,
            sampling_in(model, torch.bfloat16 if self.args.bf16 else torch.float32),
        ):
            return sample(model, prompts, n, params, kv_gb * 2**30, skip)

    def save(self, path: Path) -> None:
        self.ranks.call("save_share", path)

    def save_share(self, path: Path) -> None:
        """On each process: writes its part of a checkpoint, in the trainer's own layout."""
        self.export_share(path)
        self.trainer._save_optimizer_and_scheduler(str(path))
        if self.ranks.leads:
            self.trainer.state.save_to_json(str(path / "trainer_state.json"))
            (path / SHARDING).write_text(self._sharding(), encoding="utf-8")

    def load(self, path: Path) -> None:
        """Remembers the checkpoint; the trainer reads it once the weights are sharded."""
        if (before := (path / SHARDING).read_text(encoding="utf-8")) != self._sharding():
            raise UserError(
                f"{path}: was saved under {before} and cannot be read under {self._sharding()}; start it as you did first"
            )
        require_run_base(path, self.base_facts)
        self.checkpoint = path

    def _sharding(self) -> str:
        if plugin := self.args.deepspeed_plugin:
            return f"DeepSpeed ZeRO-{plugin.zero_stage} with --num_processes {self.args.world_size}"
        return "FSDP" if os.environ.get("ACCELERATE_USE_FSDP") == "true" else "DDP"

    def export(self, path: Path) -> None:
        self.ranks.call("export_share", path)

    def export_share(self, path: Path) -> None:
        """On each process: helps rank 0 write a model or adapter for transformers and peft."""
        self.trainer.save_model(str(path), _internal_call=True)
        if self.ranks.leads:
            write_base(path, self.base_facts)
            (path / "training_args.bin").unlink()  # a pickle that contains this machine's paths
            if not any(path.glob("*.safetensors")):
                raise UserError(
                    f"{path}: the sharded weights were not gathered; set fsdp_state_dict_type: FULL_STATE_DICT, or"
                    " zero3_save_16bit_model: true, in the accelerate config"
                )

    def close(self) -> None:
        self.ranks.stop()
        self.steps = None
        self.__dict__.pop("trainer", None)
        del self.base, self.adapter
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def require_our_optimizer(plugin: Any) -> None:
    """Raises UserError when DeepSpeed would replace our optimiser with its own."""
    if plugin and plugin.offload_optimizer_device not in (None, "none"):
        raise UserError(
            f"offload_optimizer_device: {plugin.offload_optimizer_device} (accelerate config): DeepSpeed's own optimiser would"
            " move the weights on batches without signal; remove it, and use zero_stage: 3 or more GPUs"
        )


def trainer_arguments(options: TrlOptions, blueprint: Blueprint) -> GRPOConfig:
    """TRL's settings for a blueprint. Creating them connects the processes of the launch."""
    on_gpu = resolve_device(blueprint.device) == "cuda"
    rollouts = blueprint.batch_size * blueprint.group_size
    share = rollouts // world_size()
    rows = max(size for size in range(1, min(options.microbatch_rows, share) + 1) if share % size == 0)
    checkpointing = on_gpu if options.gradient_checkpointing == "auto" else options.gradient_checkpointing
    longest = blueprint.data.max_prompt_tokens
    return GRPOConfig(
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=share // rows,
        steps_per_generation=share // rows,  # one optimiser step for a whole batch
        num_generations=rollouts,  # TRL only validates it; the coefficients already account for groups
        num_iterations=blueprint.loss.updates_per_batch,
        temperature=blueprint.temperature,
        max_completion_length=blueprint.max_tokens,
        max_grad_norm=blueprint.optimizer.max_grad_norm,
        lr_scheduler_type="constant",  # our optimiser hook sets each step's rate
        shuffle_dataset=False,  # problems come from the run
        use_cpu=not on_gpu,
        bf16=on_gpu,
        gradient_checkpointing=checkpointing,
        seed=blueprint.seed % 2**32,
        use_cache=True,  # otherwise the exported config would disable it
        ignore_data_skip=True,
        ddp_find_unused_parameters=False,
        ddp_timeout=PATIENCE,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_vllm=options.vllm != "off",
        vllm_mode=options.vllm if options.vllm != "off" else "colocate",
        vllm_server_base_url=options.vllm_url,
        vllm_gpu_memory_utilization=options.vllm_memory,
        vllm_tensor_parallel_size=options.vllm_tensor_parallel,
        # Otherwise vLLM reserves memory for the model's full context, which may exceed its share of the GPU.
        vllm_max_model_length=longest and longest + blueprint.budget.first(blueprint.max_tokens),
        vllm_importance_sampling_correction=False,  # our surrogate applies the ratios
    )
