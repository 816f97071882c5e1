"""The KServe v2 protocol as Triton speaks it, with its generate extension."""
