"""joymigrate moves AI workloads between accelerators and proves they still compute the same."""

__version__ = "0.1.0"
