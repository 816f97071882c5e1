#!/usr/bin/env bash
# The busiest card, every five seconds.
while sleep 5; do
  nvidia-smi --query-gpu=index,utilization.gpu,memory.used --format=csv,noheader | sort -t, -k2 -r | head -1
done
