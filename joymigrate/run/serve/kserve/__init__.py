"""KServe's v2 protocol, as Triton speaks it: one mechanism for all kinds of models."""
