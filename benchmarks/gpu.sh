#!/bin/sh
# Measures everything that a GPU changes, on one GPU: sh benchmarks/gpu.sh [overrides of the main job]
# Writes benchmarks/results/gpu/ and docs/performance.md; the steps by stage are printed. VLLM_PYTHON=PATH names the Python of
# an environment that has vLLM, which is compared where there is one.
set -eu
cd "$(dirname "$0")/.."
python=.venv/bin/python
[ -x "$python" ] || python=python3
export VLLM_PYTHON="${VLLM_PYTHON:-build/vllm/bin/python}"

has() { "$python" -c "import $1" 2>/dev/null; }
step() { echo "# step: $*"; "$python" -m benchmarks.train_step "$@"; }

"$python" -m benchmarks.sampling 3    # beside generate and vLLM; with and without torch.compile
"$python" -m benchmarks.learner 1     # beside TRL; float32 and the compute that the engine chooses
"$python" -m benchmarks.scale 1
"$python" -m benchmarks.budgets 1
# A step by stage: each kind of attention, what bitsandbytes saves, and a vLLM server on the same GPU.
step engine.attn_implementation=sdpa "$@"
if has flash_attn; then step engine.attn_implementation=flash_attention_2 model.dtype=bfloat16 "$@"; fi
step model.lora.rank=16 "$@"
if has bitsandbytes; then
    step model.lora.rank=16 model.quantization=nf4 "$@"
    step optimizer.name=adamw_8bit "$@"
fi
if [ -x "$VLLM_PYTHON" ]; then
    step engine=vllm engine.python="$VLLM_PYTHON" model.lora.rank=16 "$@"
    step engine=vllm engine.python="$VLLM_PYTHON" model.lora.rank=16 engine.max_lag=1 "$@"
fi
"$python" -m benchmarks.table
