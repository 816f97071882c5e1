#!/bin/sh
# Two cards; CUDA_VISIBLE_DEVICES in a comment is no site.
CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc-per-node 2 train.py
