"""Vendors' kernels, one folder per vendor. What belongs to which operator says `kernels.yaml`."""
