"""Models behind one face: a decoder of our own, and every causal model of transformers."""
