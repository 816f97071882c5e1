"""Loads transformers once, for the server whose children run programs of its Trainer."""

import importlib

from joymigrate.chips import hide_driverless

hide_driverless()
for name in ("accelerate", "transformers.trainer", "transformers.models.llama.modeling_llama"):
    importlib.import_module(name)
