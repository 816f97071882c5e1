#!/usr/bin/env bash
# Train on the GPUs named by GPUS (default: the first two).
set -euo pipefail
cd "$(dirname "$0")"

export CUDA_VISIBLE_DEVICES="${GPUS:-0,1}"
export NCCL_SOCKET_IFNAME="${INTERFACE:-eth0}"
export OMP_NUM_THREADS=4

IFS=',' read -ra cards <<< "$CUDA_VISIBLE_DEVICES"
nvidia-smi --query-gpu=name,memory.total --format=csv
exec torchrun --standalone --nproc-per-node "${#cards[@]}" train.py --device cuda "$@"
