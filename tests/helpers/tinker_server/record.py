"""Records tests/data/tinker.json anew: `python -m tests.helpers.tinker_server.record http://127.0.0.1:8765` (see serve.py)."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.helpers.recipes import ROOT, run_recipe
from tests.helpers.tinker_server.proxy import Proxy
from tests.helpers.tinker_server.replay import save

RECORDING = ROOT / "tests" / "data" / "tinker.json"
RUN = [
    "engine=tinker", "engine.base_model=tiny", "engine.reduction=seq_mean", "model.lora.rank=1", "learning_rate=3e-3",
    "batch_size=4", "group_size=4", "max_steps=2", "eval_every=0", "save_every=1", "preflight=off", "logger=jsonl",
]  # fmt: skip


def environment(url: str) -> dict[str, str]:
    """A client's, of a server that takes any key."""
    return {"TINKER_BASE_URL": url, "TINKER_API_KEY": "tml-not-a-secret", "OMP_NUM_THREADS": "1"}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, Proxy(sys.argv[1]) as proxy:
        done = run_recipe(
            "rl_basic", *RUN, "run_dir=run", cwd=Path(folder), environment=environment(proxy.url)
        )
        assert done.returncode == 0, done.stderr
        save(proxy.exchanges, RECORDING)
        print(done.stdout[-600:], (Path(folder) / "run" / "metrics.jsonl").read_text())
