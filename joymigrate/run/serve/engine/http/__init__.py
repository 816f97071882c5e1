"""The engine's front door: the OpenAI and the Triton (KServe v2) HTTP APIs on one port."""
