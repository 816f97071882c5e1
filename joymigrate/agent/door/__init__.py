"""A server of tools for coding agents (MCP): our own commands and documents, in short answers."""
