"""Serving: the engine of language models, the gateway before services, the monitor."""
