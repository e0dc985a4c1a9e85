#!/bin/sh
# Everything that a GPU changes, on one GPU, in under five minutes: sh benchmarks/gpu.sh [overrides of the main job]
# Results go to benchmarks/results/gpu/ and into docs/performance.md. engine.compile=true as an override adds minutes.
set -eu
cd "$(dirname "$0")/.."
python=.venv/bin/python
[ -x "$python" ] || python=python3

"$python" -m benchmarks.sampling 3
"$python" -m benchmarks.learner 1
"$python" -m benchmarks.scale 1
# Where the time of a step goes, for each kind of attention that is there.
"$python" -m benchmarks.train_step engine.attn_implementation=sdpa "$@"
if "$python" -c "import flash_attn" 2>/dev/null; then
    "$python" -m benchmarks.train_step engine.attn_implementation=flash_attention_2 model.dtype=bfloat16 "$@"
fi
"$python" -m benchmarks.table
