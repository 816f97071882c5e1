"""Whether a ranking program's requests may be merged or cut: proven on its exported graph."""
