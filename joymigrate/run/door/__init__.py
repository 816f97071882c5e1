"""One door at torch's own functions: an unchanged CUDA program runs on this machine's CPU.

Storages remember which card they pretend to be on, and stand-ins answer for what a CPU lacks
(`rules/<origin>/door.yaml`).
"""
