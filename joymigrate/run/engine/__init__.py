"""The language-model engine: paged attention, prefix cache, continuous batching, exact sampling."""
