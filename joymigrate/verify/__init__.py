"""Two runs of the same program: what differs, by how much, and whether that is enough to stop."""
