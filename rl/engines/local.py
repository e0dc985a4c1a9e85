"""`engine=local`: sampler and learner share one model in this process, on one device."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rl import signals
from rl.adapters import adapts_tied_weights, quiet_peft, write_base
from rl.engines.base import Arrived, Engine, SamplingParams, UpdateStats
from rl.engines.fit import require_attention, require_context, require_vocabulary
from rl.engines.launch import require_one_process
from rl.errors import UserError
from rl.hub import first_line, hub, model_errors
from rl.losses import PolicyLoss
from rl.rollouts import Completion, TrainingRow

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from rl.blueprint import Blueprint, LoraConfig, ModelConfig
# A tokenizer's folder has one of them.
VOCABULARIES = ("tokenizer.json", "*.model", "vocab*", "*.tiktoken", "tekken.json")


@dataclass(frozen=True, kw_only=True)
class LocalEngineConfig:
    """microbatch_tokens: tokens in one forward and backward pass of the learner; null: 16384 on a GPU, 1536 elsewhere.

    max_kv_gb: the sampler's key-value cache; more prompts than fit are sampled in turns. null: half of the free memory
    of a GPU, 4 GiB elsewhere. gradient_checkpointing: trade time for memory; `auto` is on for a GPU.
    compile: the sampler's step goes through torch.compile, which takes minutes once: for a GPU and long runs.
    """

    microbatch_tokens: int | None = None
    max_kv_gb: float | None = None
    gradient_checkpointing: bool | Literal["auto"] = "auto"
    attn_implementation: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    compile: bool = False

    def __post_init__(self) -> None:
        if self.microbatch_tokens is not None and self.microbatch_tokens < 1:
            raise UserError(
                f"engine.microbatch_tokens={self.microbatch_tokens}: expected a positive integer, or null;"
                " e.g. engine.microbatch_tokens=4096"
            )
        if self.max_kv_gb is not None and not self.max_kv_gb > 0:
            raise UserError(
                f"engine.max_kv_gb={self.max_kv_gb}: expected a positive number of GiB, or null; e.g. 4"
            )
        if self.compile and not (shutil.which("g++") or shutil.which("clang++")):
            raise UserError("engine.compile=true needs g++ or clang++ installed; else engine.compile=false")
        require_attention(self.attn_implementation)

    def check(self, blueprint: Blueprint) -> None:
        require_one_process(
            "engine=local", "type engine=trl for one run on all of them, or start it with python -m"
        )
        if blueprint.device not in ("auto", "cpu"):
            resolve_device(blueprint.device)

    def microbatch(self, on_gpu: bool) -> int:
        """`microbatch_tokens`, or what suits the device: few tokens stay in a processor's caches, many keep a GPU busy."""
        return self.microbatch_tokens or (16384 if on_gpu else 1536)

    def open(self, blueprint: Blueprint, tokenizer: Any) -> Engine:
        return LocalEngine(self, blueprint, tokenizer)


class LocalEngine:
    """An `Engine` (rl/engines/base.py) whose sampler and learner are one model."""

    def __init__(self, config: LocalEngineConfig, blueprint: Blueprint, tokenizer: Any) -> None:
        import torch

        from rl.engines.learner import Learner

        self.device = torch.device(resolve_device(blueprint.device))
        self.tokenizer = tokenizer
        self.model, self.adapter = load_model(blueprint.model, config, self.device, seed=blueprint.seed)
        require_vocabulary(self.model, tokenizer, blueprint.model.source)
        microbatch = config.microbatch(on_gpu=self.device.type == "cuda")
        self.learner = Learner(self.model, blueprint.optimizer, blueprint.temperature, microbatch)
        # Every forward pass is a place where a signal may end the step; the sampler asks for itself at each token.
        self.model.base_model.register_forward_pre_hook(lambda *_: signals.check())
        self.compile = config.compile
        self.max_kv_bytes = (config.max_kv_gb or default_kv_gb(self.device)) * 2**30

    def publish(self) -> None:
        """Nothing to do: the sampler reads the learner's weights."""

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        params: SamplingParams,
        arrived: Arrived | None = None,
    ) -> list[list[Completion]]:
        """See the protocol. On a processor `arrived` is told of none: graders would take its cores from the sampler."""
        from rl.engines.learner import autocast
        from rl.engines.sampler import sample

        require_context(self.model, prompts, params.max_tokens)
        self.model.eval()  # no dropout: the log-probabilities must be those of the distribution that was drawn from
        with memory_errors(f"engine.max_kv_gb={self.max_kv_bytes / 2**31:.2g}"), autocast(self.device):
            return sample(
                self.model,
                prompts,
                n,
                params,
                self.max_kv_bytes,
                compiled=self.compile,
                arrived=None if self.device.type == "cpu" else arrived,
            )

    def logprobs(self, rows: Sequence[TrainingRow]) -> list[list[float]]:
        self.model.eval()
        return self.learner.logprobs(rows)

    def update(self, rows: Sequence[TrainingRow], loss: PolicyLoss, learning_rate: float) -> UpdateStats:
        self.model.train()
        with memory_errors(f"engine.microbatch_tokens={self.learner.microbatch_tokens // 2}"):
            return self.learner.update(rows, loss, learning_rate)

    def save(self, path: Path) -> None:
        import torch

        trainable = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        with (path / "state.pt").open("wb") as file:  # a file of Python's says why when the disk is full
            torch.save({"weights": trainable, "optimizer": self.learner.optimizer.state_dict()}, file)
        self.export(path)

    def load(self, path: Path) -> None:
        import torch

        state = torch.load(path / "state.pt", map_location=self.device, weights_only=True)
        trainable = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        if {k: v.shape for k, v in state["weights"].items()} != {k: v.shape for k, v in trainable.items()}:
            raise UserError(
                f"{path}: holds other weights than this model's; resume with the model it was trained from"
            )
        with torch.no_grad():
            for name, parameter in trainable.items():
                parameter.copy_(state["weights"][name])
        self.learner.optimizer.load_state_dict(state["optimizer"])

    def export(self, path: Path) -> None:
        (self.adapter or self.model).save_pretrained(path)
        self.tokenizer.save_pretrained(path)
        if self.adapter:
            write_base(path, self.model)

    def close(self) -> None:
        import gc

        import torch

        del self.model, self.adapter, self.learner
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def load_model(
    spec: ModelConfig, config: LocalEngineConfig, device: torch.device, seed: int
) -> tuple[PreTrainedModel, Any]:
    """The causal model on `device`, and the PEFT wrapper around it (None for full fine-tuning).

    Raises UserError when the checkpoint cannot be had: it names the Hub id and the way out.
    """
    on_gpu = device.type == "cuda"
    model: Any = read_model(spec, config.attn_implementation, on_gpu)
    model.to(device)
    checkpointing = on_gpu if config.gradient_checkpointing == "auto" else config.gradient_checkpointing
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if spec.lora is None:
        return model, None
    return add_lora(model, spec.lora, checkpointing, seed)


def read_model(spec: ModelConfig, attn_implementation: str, on_gpu: bool) -> PreTrainedModel:
    """The causal model before it is placed; `on_gpu` says where it will compute. Raises UserError as `load_model`."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # the bars of reading and writing shards; a download's stays
    # Full fine-tuning keeps float32 master weights (a bf16 weight rounds small updates away) and computes in bf16.
    dtype = {
        "auto": torch.bfloat16 if on_gpu and spec.lora else torch.float32,
        "float32": torch.float32,
        "bfloat16": torch.bfloat16,
    }[spec.dtype]
    with checkpoint_errors(spec):
        found: Any = AutoModelForCausalLM.from_pretrained(
            spec.source,
            revision=spec.revision,
            dtype=dtype,
            attn_implementation=attn_implementation,
            output_loading_info=True,
        )
    model, loaded = found
    if missing := sorted(loaded["missing_keys"]):
        raise UserError(
            f"{spec.source}: lacks {len(missing)} of the model's tensors (the first: {missing[0]}), which would be drawn at"
            " random; give a whole checkpoint of a causal language model"
        )
    return model


def add_lora(model: PreTrainedModel, lora: LoraConfig, checkpointing: bool, seed: int) -> tuple[Any, Any]:
    """`model` with fresh adapters inside, and the PEFT wrapper that saves them."""
    import peft
    import torch

    torch.manual_seed(seed)  # LoRA's A matrices are drawn at random
    try:
        with quiet_peft():
            adapter = peft.get_peft_model(
                model,
                peft.LoraConfig(
                    r=lora.rank,
                    lora_alpha=lora.alpha,  # type: ignore[arg-type]
                    lora_dropout=lora.dropout,
                    target_modules=lora.target_modules,
                    task_type="CAUSAL_LM",
                ),
            )
    except (ValueError, re.error) as error:
        raise UserError(
            f"model.lora.target_modules={lora.target_modules}: {str(error).splitlines()[0]}"
        ) from None
    if adapts_tied_weights(model):
        raise UserError(
            "model.lora.target_modules: this model ties its head to its embedding, and an adapter on one would change both"
            " when merged; leave lm_head and embed_tokens out, e.g. model.lora.target_modules=all-linear"
        )
    if checkpointing:
        model.enable_input_require_grads()
    return adapter.get_base_model(), adapter


VOCABULARIES = (
    "tokenizer.json",
    "*.model",
    "vocab*",
    "*.tiktoken",
    "tekken.json",
)  # a folder has one of them


def load_tokenizer(spec: ModelConfig) -> Any:
    """The model's own tokenizer; raises UserError as `load_model` does, and for a folder without one.

    Of such a folder transformers makes a tokenizer with an empty vocabulary.
    """
    from transformers import AutoTokenizer

    if spec.path is not None and not any(any(spec.local_path.glob(name)) for name in VOCABULARIES):
        raise UserError(
            f"model.path={spec.path}: its tokenizer files are missing (tokenizer.json, or the vocabulary that it is made"
            " of); copy them from the base model: AutoTokenizer.from_pretrained(BASE).save_pretrained(FOLDER)"
        )
    with checkpoint_errors(spec):
        return AutoTokenizer.from_pretrained(spec.source, revision=spec.revision)


@contextmanager
def checkpoint_errors(spec: ModelConfig) -> Iterator[None]:
    """Turns a failure to fetch or read a checkpoint into one line with the way out."""
    if spec.path is None:
        assert spec.id is not None
        with hub("model", spec.id), model_errors(spec.id):
            yield
        return
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # a damaged file makes transformers and safetensors raise many kinds
        raise UserError(
            f"model.path={spec.path}: not a checkpoint that transformers loads ({first_line(error)})"
        ) from None


@contextmanager
def memory_errors(remedy: str) -> Iterator[None]:
    """Turns an exhausted GPU into one line with the override that needs less."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        raise UserError(
            f"out of memory ({first_line(error)}); type {remedy}, or use a smaller model"
        ) from error


def resolve_device(wanted: str) -> str:
    """`auto` takes a GPU where there is one; an absent device is a UserError."""
    import torch

    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if wanted == "auto":
        return next(name for name in ("cuda", "mps", "cpu") if present[name])
    if not present[wanted]:
        raise UserError(f"device={wanted}: this machine has none; use device=auto or device=cpu")
    return wanted


def default_kv_gb(device: torch.device) -> float:
    """Half of what a GPU has free once the weights are there; 4 elsewhere."""
    import torch

    return torch.cuda.mem_get_info(device)[0] / 2 / 2**30 if device.type == "cuda" else 4.0
