"""POST /v1/messages, in the form that Anthropic's clients speak."""
