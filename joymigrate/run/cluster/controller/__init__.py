"""What a cluster's controller remembers: its log, what is true after it, and where it lies."""
