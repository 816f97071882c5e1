"""Kernels of our own in Triton, one file per operator, and adapters to other libraries' kernels.

A file here imports triton, so it is loaded only when its kernel runs. Every kernel computes in
float32 and rounds once at the end.
"""
