"""The scheduler over Ray: Ray holds machines and processes, we hold policy."""
