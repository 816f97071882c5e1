"""A program for another Python: texts by name as JSON in, those that it can't parse with why out.

It is started by its path, by versions from 3.6 on, and imports nothing of joymigrate.
"""

import ast
import json
import sys
import warnings


def main() -> None:
    """Read standard input, write standard output."""
    warnings.simplefilter("ignore")
    bad = {}
    for name, text in json.load(sys.stdin).items():
        try:
            ast.parse(text)
        except (SyntaxError, ValueError) as error:
            bad[name] = str(error)
    json.dump(bad, sys.stdout)


if __name__ == "__main__":
    main()
