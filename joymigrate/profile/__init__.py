"""Which operators a program runs, whether a chip has them, and what would make them fast."""
