"""The learner of `engine=vllm`: engine=local's, whose weights are handed to servers while other threads wait for them."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from rl.engines.base import UpdateStats
from rl.engines.local.learner import LocalLearner
from rl.losses.base import PolicyLoss
from rl.rollouts import TrainingRow


class VllmLearner(LocalLearner):
    """version: how often its weights have changed since this start. lock: held while it computes.

    ratios: the mean probability ratio of learner to sampler that an update measured, by the version before it.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.version = 0
        self.ratios: dict[int, float] = {}
        self.lock = threading.RLock()

    def update(self, rows: Sequence[TrainingRow], loss: PolicyLoss, learning_rate: float) -> UpdateStats:
        with self.lock:
            stats = super().update(rows, loss, learning_rate)
            self.ratios[self.version] = stats.ratio_mean
            self.version += stats.stepped
            return stats

    def logprobs(self, rows: Sequence[TrainingRow]) -> list[list[float]]:
        with self.lock:
            return super().logprobs(rows)

    def reference_logprobs(self, rows: Sequence[TrainingRow]) -> list[list[float]]:
        with self.lock:
            return super().reference_logprobs(rows)

    def write_weights(self, folder: Path, dtype: str | None) -> None:
        """Writes the adapter, or all weights as `dtype`, into a new folder; a complete one appears at once.

        A head that is tied to the embedding is written too: a server may hold it as a tensor of its own.
        """
        parts = folder.with_name(f".{folder.name}.tmp")
        shutil.rmtree(parts, ignore_errors=True)
        try:
            with self.lock:
                if self.adapter is not None:
                    self.adapter.save_pretrained(parts)
                else:
                    self.model.save_pretrained(parts, state_dict=self._untied(dtype))
            parts.replace(folder)
        except BaseException:
            shutil.rmtree(parts, ignore_errors=True)
            raise

    def write_untied(self, folder: Path) -> None:
        """Writes the model as a checkpoint whose head is a tensor of its own, to be served."""
        config = self.model.config
        before = config.tie_word_embeddings
        config.tie_word_embeddings = False
        try:
            self.write_weights(folder, None)
        finally:
            config.tie_word_embeddings = before
        self.tokenizer.save_pretrained(folder)

    def _untied(self, dtype: str | None) -> dict[str, torch.Tensor]:
        wanted = getattr(torch, dtype or "", None)  # dtype is what a server says: any word
        known = isinstance(wanted, torch.dtype) and wanted.is_floating_point
        state = {
            name: value.to(wanted) if known and value.is_floating_point() else value
            for name, value in self.model.state_dict().items()
        }
        if "lm_head.weight" in state:
            state["lm_head.weight"] = state["lm_head.weight"].clone()
        return state
