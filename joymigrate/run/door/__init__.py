"""One door at torch's own functions: the origin's device words mean another device in a process.

`cpu` as the target runs an unchanged CUDA program on this machine's CPU: storages remember which
card they pretend to be on, and stand-ins answer for what a CPU lacks (`rules/<origin>/door.yaml`).
A chip as the target is the net below the source rules: what reaches torch with the origin's word
anyway is translated there, and reported with its line.
"""
