"""What runs on the machine with the chip: Python's own library and torch, nothing else."""
