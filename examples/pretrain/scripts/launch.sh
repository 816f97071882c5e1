#!/usr/bin/env bash
# Eight cards of this node, or those named by GPUS=0,1,…
set -euo pipefail
cd "$(dirname "$0")/.."

export CUDA_VISIBLE_DEVICES="${GPUS:-0,1,2,3,4,5,6,7}"
export NCCL_DEBUG=WARN
export NCCL_IB_DISABLE=0
export CUDA_DEVICE_MAX_CONNECTIONS=1
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True

count=$(nvidia-smi --list-gpus | wc -l)
deepspeed --num_gpus "$count" train.py --config configs/base.yaml "$@"
