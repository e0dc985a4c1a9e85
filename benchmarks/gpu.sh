#!/bin/sh
# Measures everything that a GPU changes, on one GPU, in under five minutes: sh benchmarks/gpu.sh [overrides of the main job]
# Writes benchmarks/results/gpu/ and docs/performance.md. The override engine.compile=true adds minutes.
set -eu
cd "$(dirname "$0")/.."
python=.venv/bin/python
[ -x "$python" ] || python=python3

"$python" -m benchmarks.sampling 3
"$python" -m benchmarks.learner 1
"$python" -m benchmarks.scale 1
# The time of each stage of a step, for each installed kind of attention.
"$python" -m benchmarks.train_step engine.attn_implementation=sdpa "$@"
if "$python" -c "import flash_attn" 2>/dev/null; then
    "$python" -m benchmarks.train_step engine.attn_implementation=flash_attention_2 model.dtype=bfloat16 "$@"
fi
"$python" -m benchmarks.table
