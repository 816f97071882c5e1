"""Source → findings → patch: what keeps a program on one vendor's devices, and the way off."""
