"""Preloaded by the fork server of a whole run (forked.py): what a run imports, by its first use."""

from __future__ import annotations

import importlib
import io

from matplotlib.figure import Figure
from PIL import Image

MODULES = (
    "peft",
    "matplotlib.backends.backend_agg",
    "transformers.models.auto.modeling_auto",
    "transformers.models.qwen2.tokenization_qwen2",
    "transformers.models.qwen3.modeling_qwen3",
    "openai",
    "pyarrow.parquet",
    "rich.tree",
    "torch.utils.serialization.config",
    "rl.engines.local.engine",
    "rl.engines.local.sampler",
    "rl.engines.local.learner",
    "rl.report.plots",
    "rl.report.run_page",
    "rl.run",
)


def savefig(self: Figure, file: io.BytesIO, **_: object) -> None:
    """One pixel: pictures cost the end of a run some seconds, and the tests of reports draw them."""
    Image.new("RGB", (1, 1)).save(file, "PNG")


for name in MODULES:
    importlib.import_module(name)
Image.init()
Figure.savefig = savefig  # type: ignore[assignment]
