"""Serves generative recommenders: beam search over the ids of items, behind HTTP."""
