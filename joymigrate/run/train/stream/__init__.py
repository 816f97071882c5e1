"""Training without an end: rows of a stream in, versions of the model out."""
