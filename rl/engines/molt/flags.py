"""A blueprint as the flags of `molt.cli.train_rl_ray`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl.blueprint import Blueprint
from rl.engines.molt.expressible import context_length, molt_loss
from rl.engines.molt.options import MoltOptions
from rl.errors import UserError

# Flags that came after the first release of Molt, with the release that brought them. No older release knows
# FlashREINFORCE.
SINCE = {
    "actor.loss_agg_mode": "0.1.8",
    "algo.advantage.is_correction_gating": "0.1.8",
    "actor.lora_dim": "0.1.10",
    "actor.lora_alpha": "0.1.10",
    "actor.lora_target_modules": "0.1.10",
}
# Flags of engine.flags that this project could not follow, with the reason and what to do instead.
REFUSED = {
    "ckpt.disable_final_save": "final/ is made of the weights that Molt exports at the end; leave it out",
    "ckpt.dcp_max_num": "it replaces keep_last; type keep_last=N",
    "eval.eval_only": "a run trains; leave it out, and type python -m recipes.evaluate for an evaluation",
    "vllm.data_parallel_size": "it changes how many GPUs sample; type engine.rollout_gpus and"
    " engine.rollout_tensor_parallel",
    "vllm.pipeline_parallel_size": "it changes how many GPUs sample; type engine.rollout_gpus and"
    " engine.rollout_tensor_parallel",
    "logger.wandb.key": "the key would be written into config.yaml and launch.sh; type logger=default, which sends the"
    " run's metrics to W&B itself",
}
FLAG_NAME = re.compile(r"[A-Za-z][\w.-]*", re.ASCII)
NO_CLIPPING = 10**9  # Molt clips rewards to [-10, 10] unless told otherwise; ours may be larger


@dataclass(frozen=True)
class JobFiles:
    """Where a run keeps what it shares with Molt. Everything but the weights is in one folder of the run directory."""

    run_dir: Path

    @property
    def folder(self) -> Path:
        """Molt's working directory."""
        return self.run_dir / "molt"

    @property
    def agent(self) -> Path:
        """The Python file that Molt loads to score completions."""
        return self.folder / "agent.py"

    @property
    def train(self) -> Path:
        return self.folder / "train"

    @property
    def test(self) -> Path:
        return self.folder / "test"

    @property
    def model(self) -> Path:
        """A copy of the checkpoint's files with another context, or of one revision; absent otherwise."""
        return self.folder / "model"

    @property
    def state(self) -> Path:
        """Checkpoints to resume from."""
        return self.folder / "state"

    @property
    def export(self) -> Path:
        """The trained weights, before they move to final/."""
        return self.folder / "export"

    @property
    def output(self) -> Path:
        """Everything that Molt prints."""
        return self.folder / "output.log"

    @property
    def samples(self) -> Path:
        """Scored completions for samples.jsonl: a file for each of Molt's runner processes."""
        return self.folder / "samples"


@dataclass(frozen=True)
class Passes:
    """How often Molt reads the problems. problems: the number of train problems; None: not known before a download."""

    problems: int | None
    episodes: int


def passes(blueprint: Blueprint, problems: int | None) -> Passes:
    """The passes that make the run's steps. Molt counts passes, and trains on the smaller batch at the end of each.

    Raises UserError for a `max_steps` that is no whole number of passes.
    """
    if blueprint.max_steps is None:
        return Passes(problems, blueprint.epochs)
    if problems is None:
        return Passes(None, 1)
    steps = -(-problems // blueprint.batch_size)
    if blueprint.max_steps <= steps:
        return Passes(min(problems, blueprint.max_steps * blueprint.batch_size), 1)
    if blueprint.max_steps % steps:
        whole = blueprint.max_steps // steps
        raise UserError(
            f"max_steps={blueprint.max_steps}: Molt trains whole passes of {steps} steps over {problems:,} problems; type"
            f" max_steps={whole * steps} or {(whole + 1) * steps}, or max_steps=null epochs={whole}"
        )
    return Passes(problems, blueprint.max_steps // steps)


def job_flags(
    blueprint: Blueprint, options: MoltOptions, files: JobFiles, reading: Passes, evaluates: bool, chat: bool
) -> dict[str, Any]:
    """Molt's flags by name, without the dashes; True for a flag without a value.

    evaluates: there are test problems. chat: prompts are messages, which Molt renders; otherwise text.
    Raises UserError as `require_expressible` does, and for a flag in engine.flags that a choice of the blueprint sets.
    """
    rollouts = blueprint.batch_size * blueprint.group_size
    flags: dict[str, Any] = {
        "actor.model_name_or_path": model_source(blueprint, files),
        "data.prompt_dataset": files.train,
        "data.input_key": "prompt",
        "data.label_key": "reward_model",
        "data.apply_chat_template": chat,
        **({"data.max_samples": reading.problems} if reading.problems else {}),
        "data.max_len": context_length(blueprint, options),
        "rollout.batch_size": blueprint.batch_size,
        "rollout.vllm_generate_batch_size": options.in_flight or blueprint.batch_size,
        "rollout.micro_batch_size": 1,
        "rollout.num_runners": options.runners,
        "rollout.n_samples_per_prompt": blueprint.group_size,
        "rollout.max_new_tokens": options.max_call_tokens or blueprint.max_tokens,
        "rollout.temperature": blueprint.temperature,
        "rollout.top_p": 1.0,
        "train.agent_path": files.agent,
        "train.batch_size": rollouts,
        "train.micro_batch_size": options.microbatch_rows,
        "train.max_epochs": 1,
        "train.num_episodes": reading.episodes,
        "train.force_on_policy": True,
        "train.force_sync_mode": options.synchronous,
        "train.async_queue_size": options.queue,
        "train.partial_rollout_enable": (options.in_flight or 0) > blueprint.batch_size,
        "train.seed": blueprint.seed % 2**31,
        **molt_loss(blueprint.loss, options).flags,
        "algo.kl.init_coef": 0,
        "reward.clip_range": [-NO_CLIPPING, NO_CLIPPING],
        **_optimizer(blueprint),
        **_lora(blueprint),
        "actor.num_nodes": options.actor_nodes,
        "actor.num_gpus_per_node": options.actor_gpus,
        "actor.gradient_checkpoint": options.gradient_checkpointing,
        "fsdp.param_dtype": "bf16",
        "fsdp.attn_implementation": options.attn_implementation,
        "fsdp.packing_samples": options.packing,
        "fsdp.tp_size": options.tensor_parallel,
        "fsdp.cp_size": options.context_parallel,
        "fsdp.ep_size": options.expert_parallel,
        "vllm.num_engines": options.engines,
        "vllm.tensor_parallel_size": options.rollout_tensor_parallel,
        "vllm.enable_expert_parallel": options.rollout_expert_parallel,
        "vllm.sync_backend": "nccl",
        "vllm.gpu_memory_utilization": options.gpu_memory,
        **(_evaluation(blueprint, options, files) if evaluates and blueprint.eval_every else {}),
        "ckpt.path": files.state,
        "ckpt.output_dir": files.export,
        "ckpt.save_steps": blueprint.save_every or -1,
        "ckpt.max_num": blueprint.keep_last,
        "ckpt.best_metric_key": "none",
        "ckpt.load_enable": True,
        "logger.logging_steps": 1,
    }
    for name, value in options.more_flags.items():
        _require_passable(name, value, flags)
        if value is not None:
            flags[name] = value
    return {name: value for name, value in flags.items() if value is not False}


def _require_passable(name: str, value: Any, flags: Mapping[str, Any]) -> None:
    """Raises UserError for an entry of engine.flags that is no flag, or that would change what the blueprint says."""
    if name in flags:
        raise UserError(
            f"engine.flags.{name}={value}: the blueprint already sets this flag to {text_of(flags[name])}; change the"
            " choice that sets it (docs/molt.md)"
        )
    if name in REFUSED:
        raise UserError(f"engine.flags.{name}: {REFUSED[name]}")
    if not FLAG_NAME.fullmatch(name):
        raise UserError(
            f"engine.flags: {name!r} is not a flag's name; expected one of Molt's without its dashes, e.g. vllm.enforce_eager"
        )
    if any(str(item).startswith("--") for item in (value if isinstance(value, list | tuple) else [value])):
        raise UserError(
            f"engine.flags.{name}={value}: a value cannot begin with --; each flag has a key of its own in engine.flags"
        )


def arguments(flags: Mapping[str, Any]) -> list[str]:
    """The flags as command-line arguments."""
    found = []
    for name, value in flags.items():
        found.append(f"--{name}")
        if value is not True:
            found += [str(item) for item in (value if isinstance(value, list | tuple) else [value])]
    return found


def text_of(value: Any) -> str:
    """A flag's value as it is typed."""
    return " ".join(str(item) for item in value) if isinstance(value, list | tuple) else str(value)


def model_source(blueprint: Blueprint, files: JobFiles) -> str:
    """The folder or Hub id that Molt loads."""
    copied = blueprint.model.context is not None or (
        blueprint.model.path is None and blueprint.model.revision is not None
    )
    return str(files.model) if copied else blueprint.model.source


def _optimizer(blueprint: Blueprint) -> dict[str, Any]:
    chosen = blueprint.optimizer
    schedule = {
        "cosine": "cosine_with_min_lr",
        "constant": "constant_with_warmup" if chosen.warmup else "constant",
    }
    return {
        "actor.optim": "adam",
        "actor.adam.lr": blueprint.learning_rate,
        "actor.adam.betas": list(chosen.betas),
        "actor.adam.eps": chosen.eps,
        "actor.adam.weight_decay": chosen.weight_decay,
        "actor.lr_scheduler": schedule.get(chosen.schedule, chosen.schedule),
        "actor.lr_warmup_ratio": chosen.warmup,
        "actor.min_lr_ratio": chosen.final_ratio,
        "actor.max_norm": chosen.max_grad_norm,
    }


def _lora(blueprint: Blueprint) -> dict[str, Any]:
    lora = blueprint.model.lora
    if lora is None:
        return {}
    named = [lora.target_modules] if isinstance(lora.target_modules, str) else list(lora.target_modules)
    # Molt matches whole module names, so that a bare `q_proj` matches nothing; without the flag it takes all linear layers.
    patterns = [] if named == ["all-linear"] else [f"*.{name}" for name in named]
    return {
        "actor.lora_dim": lora.rank,
        "actor.lora_alpha": int(lora.alpha),
        **({"actor.lora_target_modules": patterns} if patterns else {}),
    }


def _evaluation(blueprint: Blueprint, options: MoltOptions, files: JobFiles) -> dict[str, Any]:
    return {
        "eval.dataset": files.test,
        "eval.steps": blueprint.eval_every,
        "eval.n_samples_per_prompt": blueprint.eval_completions,
        "eval.temperature": blueprint.eval_temperature,
        "eval.top_p": options.eval_top_p,
        "eval.eval_at_start": True,
    }
