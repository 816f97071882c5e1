"""What help calls the values of options and arguments: `--to CHIP`, `--port N`, not Python's types.

A release of typer decides how it writes a value that has no name; here every value gets one.
"""

from __future__ import annotations

import re
from typing import Any

# Where the option's own word does not say what is wanted.
NAMES = {
    "--to": "CHIP",
    "--from": "CHIP",
    "--baseline-chip": "CHIP",
    "--select": "RULE",
    "--ignore": "PATTERN",
    "--exclude": "PATTERN",
    "--inject": "FAULT",
    "--by": "SHARE",
    "--fail-on": "WHAT",
    "--output": "FILE",
    "--chip-version": "VERSION",
    "--host": "ADDRESS",
    "-m": "MODULE",
}


def name_values(command: Any) -> None:
    """Name every value of a command in its help."""
    for one in command.params:
        if one.param_type_name == "argument":
            name_argument(one)
        elif one.metavar is None and not is_switch(one):
            one.metavar = option_value(one)


def is_switch(option: Any) -> bool:
    """Whether an option takes no value."""
    return bool(getattr(option, "is_flag", False) or getattr(option, "count", False))


def option_value(option: Any) -> str:
    """The name of an option's value: of the table, of its type, or the option's last word."""
    words = [name for name in option.opts if name.startswith("--")] or option.opts
    known = next((NAMES[name] for name in option.opts if name in NAMES), None)
    if known:
        return known
    kind = type_of(option)
    if re.search(r"\bint", kind):
        return "N"
    if "float" in kind:
        return "NUMBER"
    if re.search(r"path\b", kind, re.IGNORECASE):
        return "PATH"
    return str(words[0]).strip("-").rpartition("-")[2].upper()


def type_of(parameter: Any) -> str:
    """The type of a value in a word, whichever library holds it."""
    if hasattr(parameter, "bare_type"):
        return str(parameter.bare_type())
    return str(getattr(parameter.type, "name", ""))


def name_argument(argument: Any) -> None:
    """An argument as `PATH...`, in brackets in the usage line where it may be left out."""
    name = re.sub(r"[\[\]]", "", argument.metavar or argument.name.upper())
    if argument.nargs != 1 and not name.endswith("..."):
        name += "..."
    usage = name if argument.required else f"[{name}]"
    argument.metavar = name
    if hasattr(argument, "make_metavar"):  # older releases of typer ask this
        argument.make_metavar = lambda *context: usage
    # Newer releases of typer write the type behind the name, and braces around it.
    argument.display_type_rich = lambda ctx: None
    argument._usage_display_name = lambda: usage
