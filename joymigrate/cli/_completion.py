"""What the shell offers for the value of an option: chips, rules, formats, steps.

An option whose help is a list of words (`text, json or md.`) offers these words; a name that
several commands use is looked up in `NAMES`; the rest is left to the shell, which offers files.
Nothing here may import torch: an answer comes while the user waits for a key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.language import languages

WORD = r"[A-Za-z0-9][\w.-]*"
LIST = re.compile(rf"{WORD}(?:, {WORD})*(?:,? or {WORD}|, {WORD})")
MEANINGS = re.compile(rf"({WORD}): [^;]+")
RULE = re.compile(r"(?m)^\s*(?:- )?id: (JM\d+)")


def chips() -> Iterable[str]:
    """Names of all chips, of packages outside as well."""
    from joymigrate.chips import folders

    found = []
    for folder, _ in folders():
        text = (folder / "chip.yaml").read_text(encoding="utf-8")
        found += re.findall(r"(?m)^name: ([\w-]+)", text)
    return found


def rules() -> Iterable[str]:
    """Ids of all rules, without reading what they say."""
    from joymigrate.chips import rules_root

    texts = (path.read_text(encoding="utf-8") for path in rules_root().glob("*/*.yaml"))
    return sorted({rule for text in texts for rule in RULE.findall(text)})


def steps() -> Iterable[str]:
    """Steps of a journey, as its plan names them."""
    plan = Path(__file__).parents[1] / "journey" / "plan.py"
    return re.findall(r'\bPlannedStep\(\s*"([\w-]+)"', plan.read_text(encoding="utf-8"))


def commands() -> Iterable[str]:
    """Names of all commands."""
    from joymigrate.cli._commands import command_names

    return command_names()


def policies() -> Iterable[str]:
    """Placement policies, by their files."""
    return of_folder("run/cluster/policies")


def tasks() -> Iterable[str]:
    """What a model can be trained for, by the files."""
    folder = "run/train/tasks"
    text = (Path(__file__).parents[1] / folder / "__init__.py").read_text(encoding="utf-8")
    listed = re.search(r"OF_FEATURES = \((.*?)\)", text)
    features = re.findall(r'"([\w-]+)"', listed[1] if listed else "")
    own = [name.replace("_", "-") for name in of_folder(folder) if name != "task"]  # shared
    return sorted([*own, *features])


def kernels() -> Iterable[str]:
    """Operators with several implementations, as their files name them."""
    files = sorted((Path(__file__).parents[1] / "run/kernels/ops").glob("*.py"))
    texts = (file.read_text(encoding="utf-8") for file in files)
    return [name for text in texts for name in re.findall(r'(?m)^ +name="(\w+)",$', text)]


def of_folder(folder: str) -> list[str]:
    """The modules of a folder of joymigrate that its package discovers by name."""
    path = Path(__file__).parents[1] / folder
    return sorted(file.stem for file in path.glob("*.py") if file.stem[0] != "_")


def past() -> Iterable[str]:
    """Numbers of the steps in this project's ledger, the latest first."""
    from joymigrate.ledger import Ledger

    return [step.id for step in reversed(Ledger.of(Path.cwd()).steps())]


# By option, or by command and parameter where a name means several things.
NAMES: dict[str, Callable[[], Iterable[str]]] = {
    "--to": chips,
    "scan --from": chips,
    "rewrite --from": chips,
    "explain --from": chips,
    "chips show name": chips,
    "chips validate chips": chips,
    "--select": rules,
    "--ignore": rules,
    "explain rules": rules,
    "doctor words": commands,
    "migrate --until": steps,
    "cluster plan --policy": policies,
    "cluster simulate --policy": policies,
    "cluster submit --policy": policies,
    "--op": kernels,
    "kernels list names": kernels,
    "kernels check names": kernels,
    "kernels bench names": kernels,
    "train init --task": tasks,
    "train labelstudio way": lambda: ("in", "out"),
    "rollback step": past,
    "--precision": lambda: ("fp32", "hf32", "bf16", "fp16"),
    "--grade": lambda: ("documented", "rehearsed", "measured"),
    "cluster autoscale --for": lambda: ("hpa", "keda"),
    "monitor --export": lambda: ("prometheus", "grafana"),
    "--lang": languages,
}
OWN = {  # the same name for something else
    "quantise --ignore",
    "profile advise --select",
    "profile advise --ignore",
    "verify ops --op",
}


def equip(command: Any, path: str) -> None:
    """Let every parameter of a command, and of those within it, offer its values."""
    for name, inner in getattr(command, "commands", {}).items():
        equip(inner, f"{path} {name}")
    for parameter in command.params:
        values = source(parameter, path)
        if values is not None:
            parameter._custom_shell_complete = offer(values)  # where typer's own come from


def source(parameter: Any, path: str) -> Callable[[], Iterable[str]] | None:
    """Where a parameter's values come from; None for one that can be anything."""
    options = [name for name in parameter.opts if name.startswith("--")] or [parameter.name]
    for name in options:
        own = f"{path} {name}"
        if own in NAMES:
            return NAMES[own]
        if name in NAMES and own not in OWN:
            return NAMES[name]
    if not parameter.opts[0].startswith("-") or getattr(parameter, "is_flag", False):
        return None
    words = list_words(getattr(parameter, "help", None) or "")
    return (lambda: words) if words and not of_path(parameter) else None


def of_path(parameter: Any) -> bool:
    """Whether the value is a file or a folder."""
    hint = str(getattr(parameter, "type_descriptor", "")) + str(getattr(parameter, "type", ""))
    return "Path" in hint or "number" in hint.lower()


def list_words(help: str) -> list[str]:
    """The words of a help text that lists what may be given; none for any other text."""
    plain = re.sub(r" ?\([^)]*\)", "", help).split(". ")[0].removesuffix(".")
    plain = plain.removesuffix(", to stdout")
    meant = [MEANINGS.fullmatch(part) for part in plain.split("; ")]
    if len(meant) > 1 and all(meant):
        return [match.group(1) for match in meant if match]
    lead, colon, rest = plain.partition(": ")
    wanted = rest if colon and lead[:1].isupper() else plain
    if not LIST.fullmatch(wanted):
        return []
    return [word for word in re.split(r",? or |, ", wanted) if word]


def offer(
    values: Callable[[], Iterable[str]],
) -> Callable[[Any, Any, str], list[str]]:
    """The values that begin with what is typed. Of a comma list the last part is completed."""

    def answer(context: Any, parameter: Any, incomplete: str) -> list[str]:
        kept, comma, last = incomplete.rpartition(",")
        try:
            return [kept + comma + value for value in values() if value.startswith(last)]
        except (JoyError, OSError):
            return []  # a key press is no place for a message

    return answer
