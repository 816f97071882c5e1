"""The agent's door: the next step, patches from outside that count when proven, a server of tools.

The commands, documents and words are those for people; nothing here calls a model or reads a key.
"""
