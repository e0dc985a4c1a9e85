"""Trained weights on disk and the base they belong to: fingerprints, loading an adapter, merging it into its base."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl.errors import UserError, first_line
from rl.models.hub import loading_weights
from rl.models.quantization import keep_exact, nf4_config
from rl.storage.file_kinds import lfs_pointer, pointer_advice

if TYPE_CHECKING:
    import torch
    from peft import PeftModel
    from transformers import PreTrainedModel

BASE = "base.json"  # beside trained weights: fingerprints of the base weights and the tokenizer
DIFFERS = {
    "fingerprint": "weights ({}) are not those that {} was trained on",
    "nf4_fingerprint": "4-bit weights ({}) are not those that {} was trained on",
    "tokenizer": "tokenizer ({}) is not the one that {} was trained with",
}
FINGERPRINTS = {False: "fingerprint", True: "nf4_fingerprint"}  # by whether the base is quantized
SAMPLED = 1024  # values read from each tensor for the fingerprint
# Texts that tokenizers split differently, in addition to PROBES: spaces, digits, full width, accents.
SPLIT_PROBES = (
    "  two  blanks\n\n\ttab, 1234567890 1,365.50",
    "café ﬁ １２３ ｶﾞ がぎ 百二十三\u3000<think>",
    "\\frac{1}{2}\r\n#### 7",
)
PROBES = ("What is 17 + 25?", "りんごが3個あります。", "The answer is \\boxed{42}.")


@dataclass(frozen=True)
class MergeReport:
    """What merging did.

    tensors: LoRA tensors read, all of them used. changed: share of the adapted weights that differ from the base's once
    stored as `dtype`. logit_difference: largest, over the probe prompts, between merged and adapter-plus-base in float32;
    stored_logit_difference: the same after the cast to `dtype`.
    """

    dtype: str
    tensors: int
    changed: float
    logit_difference: float
    stored_logit_difference: float


def base_fingerprint(model: PreTrainedModel) -> str:
    """16 hexadecimal digits of the base's weights, with or without an adapter inside, in float32 or in bfloat16.

    Covers names, shapes and evenly spaced values of every tensor: tells checkpoints apart within seconds.
    """
    import torch

    digest = hashlib.sha256()
    for name, weight in sorted(model.named_parameters()):
        if ".lora_" not in name:
            with whole(weight):
                values = weight.detach().flatten()[:: max(1, weight.numel() // SAMPLED)]
                digest.update(f"{name.replace('.base_layer.', '.')} {tuple(weight.shape)}".encode())
                digest.update(values.to("cpu", torch.bfloat16).view(torch.int16).numpy().tobytes())
    return digest.hexdigest()[:16]


def whole(weight: Any) -> AbstractContextManager[Any]:
    """A context in which a weight is complete: under DeepSpeed ZeRO-3 it is gathered from all processes."""
    if not hasattr(weight, "ds_id"):
        return nullcontext()
    from deepspeed.zero import GatheredParameters

    return GatheredParameters([weight])


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """16 hexadecimal digits that cover the tokenizer's vocabulary, its chat template and how it splits some texts."""
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (*PROBES, *SPLIT_PROBES)]
    facts = [sorted(tokenizer.get_vocab().items()), ids, getattr(tokenizer, "chat_template", None)]
    return hashlib.sha256(repr(facts).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def base_facts(model: PreTrainedModel, tokenizer: Any) -> dict[str, str]:
    """The facts for `write_base`, from a base that is untrained or has only a trained adapter inside."""
    return {
        "base": str(model.config.name_or_path),
        FINGERPRINTS[bool(getattr(model, "is_quantized", False))]: base_fingerprint(model),
        "tokenizer": tokenizer_fingerprint(tokenizer),
    }


def write_base(folder: Path, facts: Mapping[str, str]) -> None:
    """Writes base.json: which base the weights in `folder` were trained from."""
    (folder / BASE).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def require_run_base(folder: Path, facts: Mapping[str, str]) -> None:
    """`require_base` for a run that resumes from the checkpoint in `folder`."""
    require_base(
        folder, facts, "give the model that the run was started with (model.path=FOLDER), or another run_dir"
    )


def require_base(folder: Path, facts: Mapping[str, str], instead: str) -> None:
    """Raises UserError if base.json in `folder` names another base than `facts`; no check without the file.

    instead: what to type, for the error.
    """
    if not (folder / BASE).is_file():
        return
    stored = json.loads((folder / BASE).read_text(encoding="utf-8"))
    for part, differs in DIFFERS.items():
        if part in stored and part in facts and stored[part] != facts[part]:
            raise UserError(
                f"{facts['base']}: its {differs.format(facts[part], folder)} ({stored[part]}, {stored['base']}); {instead}"
            )


def base_of(adapter: Path) -> str:
    """The folder or Hub id of the base that an adapter names. Raises UserError when it names none."""
    try:
        config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
        base = config.get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(
            f"adapter={adapter}: adapter_config.json cannot be read ({first_line(error)}); give a finished run, its final/,"
            " one of its checkpoints/step-..., or a complete PEFT adapter"
        ) from None
    if not base:
        raise UserError(
            f"adapter={adapter}: its adapter_config.json names no base model; type base=FOLDER or base=ORG/NAME"
        )
    return str(base)


def adapts_tied_weights(model: PreTrainedModel) -> bool:
    """Whether an adapter sits on a head tied to the embedding: merging would change both."""
    tied = getattr(model.config.get_text_config(), "tie_word_embeddings", False)
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    return tied and any(hasattr(end, "base_layer") or hasattr(end, "modules_to_save") for end in ends)


@contextmanager
def quiet_peft() -> Iterator[None]:
    """Silences peft's warnings: some are about transformers' deprecations, for the rest we raise errors ourselves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def load_adapter(
    folder: Path,
    base: str | None,
    device: torch.device,
    dtype: torch.dtype | None = None,
    quantized: bool = False,
) -> PeftModel:
    """The adapter in `folder` on its base (or on `base`), in float32 unless `dtype` says otherwise.

    quantized: with the base in 4 bits, as it was trained with model.quantization=nf4. Raises UserError for a different base than the adapter was trained on, for missing or unexpected tensors, and for an
    adapter on a tied head.
    """
    import peft
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    source = base or base_of(folder)
    try:
        with loading_weights(source):
            model: Any = AutoModelForCausalLM.from_pretrained(
                source,
                dtype=dtype or torch.float32,
                quantization_config=nf4_config(device.type == "cuda") if quantized else None,
            )
    except Exception as error:  # a damaged file makes transformers and safetensors raise many kinds
        if pointer := lfs_pointer(Path(source)):
            raise UserError(f"base={source}: {pointer_advice(pointer)}") from None
        raise UserError(
            f"base={source}: cannot be loaded ({first_line(error)}); give the adapter's base, base=FOLDER or base=ORG/NAME"
        ) from None
    if quantized:
        keep_exact(model)
    model.to(device)
    if (folder / BASE).is_file():
        require_base(
            folder,
            {"base": f"base={source}", FINGERPRINTS[quantized]: base_fingerprint(model)},
            "give that base (base=FOLDER or base=ORG/NAME; model.path=FOLDER where a recipe has no base)",
        )
    if pointer := lfs_pointer(folder):
        raise UserError(f"adapter={folder}: {pointer_advice(pointer)}")
    try:
        config = peft.PeftConfig.from_pretrained(str(folder))
        tensors = peft.load_peft_weights(str(folder), device="cpu")
        # Without the module names PEFT would take its own default for the model and drop the other tensors.
        config.target_modules = config.target_modules or adapted_modules(tensors)
        with quiet_peft():
            adapted = peft.PeftModel.from_pretrained(model, str(folder), config=config).eval()
    except (
        Exception
    ) as error:  # a missing or damaged file, or another shape, makes peft and safetensors raise many kinds
        raise UserError(
            f"adapter={folder}: cannot be loaded onto base={source} ({first_line(error)}); expected adapter_config.json and"
            " adapter_model.safetensors of an adapter of this base"
        ) from None
    wanted = peft.get_peft_model_state_dict(adapted).keys()
    if odd := sorted(wanted ^ tensors.keys()):
        raise UserError(
            f"adapter={folder}: {len(odd)} of its tensors do not fit this base (first: {odd[0]}); expected {len(wanted)} tensors"
            f" such as {min(wanted)}"
        )
    if adapts_tied_weights(model):
        raise UserError(
            f"adapter={folder}: adapts the head or the embedding of a model that ties the two, so merging would change"
            " both; use it unmerged, or untie the base first"
        )
    return adapted


def adapted_modules(tensors: Mapping[str, Any]) -> list[str]:
    """The names of the modules that an adapter's tensors belong to, e.g. q_proj."""
    return sorted({name.partition(".lora_")[0].rpartition(".")[2] for name in tensors})


def merge(adapted: PeftModel, tokenizer: Any, dtype: torch.dtype) -> tuple[PreTrainedModel, MergeReport]:
    """The base plus the adapter, summed in float32 and cast to `dtype` once (a bf16 sum would lose small updates).

    Raises UserError when the adapter changes no weight.
    """
    import peft

    tensors = len(peft.get_peft_model_state_dict(adapted))
    changed = changed_share(adapted, dtype)
    expected = probe_logits(adapted, tokenizer)
    with quiet_peft():
        merged: Any = adapted.merge_and_unload(safe_merge=True)
    difference = (probe_logits(merged, tokenizer) - expected).abs().max().item()
    merged.to(dtype)
    stored_difference = (probe_logits(merged, tokenizer) - expected).abs().max().item()
    return merged, MergeReport(
        str(dtype).removeprefix("torch."), tensors, changed, difference, stored_difference
    )


def changed_share(adapted: PeftModel, dtype: torch.dtype) -> float:
    """Share of the adapted layers' weights that differ from the base's when both are stored as `dtype`."""
    changed = total = 0
    moved = False
    layers: list[Any] = [module for module in adapted.modules() if hasattr(module, "lora_A")]
    for layer in layers:
        weight = layer.get_base_layer().weight.detach()
        delta = layer.get_delta_weight("default").detach()
        moved = moved or bool(delta.any())
        changed += int(((weight + delta).to(dtype) != weight.to(dtype)).sum())
        total += weight.numel()
    if not moved:
        raise UserError("adapter: it changes no weight (all its updates are zero); give a trained adapter")
    return changed / total


def probe_logits(model: Any, tokenizer: Any) -> torch.Tensor:
    """[tokens, vocabulary] float32 logits of the probe prompts, concatenated."""
    import torch

    with torch.inference_mode():
        encoded = [
            tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"] for text in PROBES
        ]
        return torch.cat([model(input_ids=ids.to(model.device)).logits[0].float() for ids in encoded])
