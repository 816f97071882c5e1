"""One module per kind of file: `matches(path, head)` and `read(path)`."""
