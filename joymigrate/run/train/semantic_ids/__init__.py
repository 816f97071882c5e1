"""Semantic ids: an item as a few codes, so that a model can write it."""
