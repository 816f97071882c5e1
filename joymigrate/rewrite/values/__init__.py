"""The values of a project: which places hold one value, found on demand from a word.

`reader` reads one file into cells and edges, `transfers` says what known calls do with values,
`graph` leads from a cell to its neighbours in all files, `growth` collects what one word reaches.
Nothing here knows of rules, styles or decisions: `solve` and `check` ask.
"""
