"""Which programs of a project read an option or a setting as a device or a backend."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property

from joymigrate.chips import Chip
from joymigrate.model import Finding, Tier
from joymigrate.rewrite import analyse
from joymigrate.rewrite.discover import File
from joymigrate.rewrite.flow_sinks import BACKEND, DEVICE
from joymigrate.rewrite.programs import Programs

LOADERS = (
    "yaml", "omegaconf", "hydra", "json", "toml", "configparser", "fromfile", "load_config",
    "from_pretrained",
)  # fmt: skip
KEY = re.compile(r"[ \t]*[\"']?([A-Za-z_][\w-]*)[\"']?[ \t]*[:=]")
READ = re.compile(r"[.\"'](\w+)")
# Names of objects that hold settings.
OWNERS = (
    r"\b(?:\w*_)?(?:args?|opts?|options?|cfgs?|conf|configs?|configuration|params|hparams|hps?|flags"
    r"|settings?|ctx)(?:_\w+)?"
)
# Classes whose fields are settings.
FIELDS = re.compile(
    r"dataclass|BaseModel|BaseSettings|NamedTuple|TypedDict|\battrs?\b|LightningModule"
)
# Folders of configuration files, as programs name them.
FOLDERS = re.compile(r"(?:.*_)?(?:conf|config|cfg|setting|param|recipe)s?(?:_.*)?", re.I)
FEW = 40  # files of a program that are asked what they do with a value
ENOUGH = 3  # keys beside a setting that its reader reads as well
SHARE = 0.4  # of those keys: any trainer reads `epochs` and `batch_size`
LONGEST = 600  # characters of an option's definition


class OptionReaders:
    """What the programs of a project do with an option or a key, and whether that was rewritten."""

    def __init__(
        self,
        findings: Iterable[Finding],
        results: Iterable[analyse.FileAnalysis],
        files: Mapping[str, File],
        job: analyse.ScanContext,
        programs: Programs,
    ) -> None:
        self.files, self.job, self.programs = files, job, programs
        self.texts = programs.texts
        self.options = {(result.path, name) for result in results for name, _ in result.options}
        self.moved: dict[str, set[int]] = {}  # lines of each file that are rewritten by default
        for one in findings:
            if one.edits and one.tier is Tier.SAFE:
                self.moved.setdefault(one.path, set()).update(range(one.line, one.end_line + 1))
        self._reaches: dict[tuple[str, str], bool] = {}
        self._words: dict[str, frozenset[str]] = {}
        self._asked: dict[tuple[str, str], bool] = {}
        self._kept: dict[tuple[str, str], bool] = {}
        self._named: dict[str, dict[str, str]] = {}
        self._found: dict[tuple[str, str], list[str]] = {}  # readers, by file name and folder

    def takes(self, programs: tuple[str, ...], name: str, *, loose: bool = False) -> bool:
        """Whether one of some programs takes a device or backend by an option, and was moved.

        The files that define the option are looked for in those that a program imports, then in
        the whole project. A `loose` one (`a.device=cuda`) needs no definition.
        """
        near = self._near(programs)
        defining = [path for path in programs if self._defines(path, name)]
        defining = defining or [path for path in near if self._defines(path, name)]
        if not defining and not loose:
            defining = [path for path in self._naming(name) if self._defines(path, name)]
        if not defining and not (loose and programs):
            return False
        uses = [path for path in dict.fromkeys([*defining, *near]) if name in self.texts[path]]
        seen = any((path, name) in self.options or self._offers(path, name) for path in defining)
        seen = seen or any(self._arrives(path, name) for path in uses[:FEW])
        return seen and not any(self._keeps(path, name) for path in (uses if loose else defining))

    def reads(self, path: str, text: str, start: int, name: str) -> bool:
        """Whether a program reads the setting at `start` of a configuration file, and was moved.

        A program that names the file or its folder and reads such files, one that a script gives
        the file to, or one that reads several keys of the same table as well.
        """
        naming = self._naming(name)
        beside = siblings(text, start) - {name}
        sharing = [other for other in naming if self._shares(other, beside)]
        loading = [other for other in self._readers(path) if other in naming]
        near = list(dict.fromkeys([*loading, *sharing]))
        if any(self._keeps(other, name) for other in near):
            return False
        near = [p for p in near if (p, name) in self.options or self._asks(p, name)]
        return any((p, name) in self.options or self._arrives(p, name) for p in near[:FEW])

    def _asks(self, path: str, name: str) -> bool:
        """Whether a file asks settings for a name: `["name"]`, `cfg.name`, `name: str` of a class.

        Not any other object for it (`x.device`), nor a parameter that an expanded table may fill.
        """
        if (path, name) not in self._asked:
            text, word = self.texts[path], re.escape(name)
            asked = re.compile(rf"[\"']{word}[\"']|(?:{OWNERS})(?:\(\))?(?:\.\w+)*\.{word}\b", re.I)
            field = re.compile(rf"\n[ \t]+{word}[ \t]*:[ \t]*\w")
            held = FIELDS.search(text) and field.search(text)
            self._asked[path, name] = bool(asked.search(text) or held)
        return self._asked[path, name]

    def _near(self, programs: Iterable[str]) -> list[str]:
        """Some files and all that they import of the project."""
        found = dict.fromkeys(programs)
        for path in list(found):
            found.update(dict.fromkeys(self.programs.below(path)))
        return list(found)

    def _naming(self, name: str) -> dict[str, str]:
        """Python files with a word in them, and their texts."""
        if name not in self._named:
            self._named[name] = {path: text for path, text in self.texts.items() if name in text}
        return self._named[name]

    def _readers(self, path: str) -> list[str]:
        """Programs that read a configuration file, and all that they import of the project."""
        folder, _, name = path.rpartition("/")
        above = folder.rpartition("/")[2]
        above = above if FOLDERS.fullmatch(above) else ""
        if (name, above) not in self._found:
            self._found[name, above] = self._near(self._loaders(name, above))
        return self._found[name, above]

    def _loaders(self, name: str, above: str) -> list[str]:
        """Programs that read a configuration file, by its name, its folder's, or a command line."""
        stem = name.partition(".")[0]
        named = re.compile(rf"config_name\s*=\s*[\"']{re.escape(stem)}[\"']")
        inside = re.compile(rf"[\"'/]{re.escape(above)}[\"'/]")
        words = {**self._naming(name), **self._naming(stem), **self._naming(above or name)}
        found = [
            path
            for path, text in self.texts.items()
            if path in words
            and (
                path in self._naming(name)
                or ("config_name" in text and named.search(text))
                or (above and inside.search(text))
            )
        ]
        found = [path for path in found if loads(self.texts[path])]
        return [*found[:FEW], *self.programs.given(name)]

    def _shares(self, path: str, keys: set[str]) -> bool:
        """Whether a Python file reads several of some keys, or both of two."""
        if path not in self._words:
            self._words[path] = frozenset(READ.findall(self.texts[path]))
        read = keys & self._words[path]
        rare = {key for key in read if "_" in key}
        several = len(read) >= ENOUGH or len(rare) == ENOUGH - 1
        return (several and len(read) >= SHARE * len(keys)) or len(read) == len(keys) > 1

    def _defines(self, path: str, name: str) -> bool:
        text = self.texts.get(path, "")
        return name in text.replace("-", "_") and definition(name).search(text) is not None

    def _arrives(self, path: str, name: str) -> bool:
        """Whether a value under a name arrives at a device or backend in a file."""
        if (path, name) not in self._reaches:
            kinds = analyse.reaches(self.files[path], self.job, name)
            self._reaches[path, name] = bool(kinds & {DEVICE, BACKEND})
        return self._reaches[path, name]

    def _keeps(self, path: str, name: str) -> bool:
        """Whether a definition of an option, or a comparison with it, keeps the origin's word."""
        if (path, name) not in self._kept:
            self._kept[path, name] = self._finds_kept(path, name)
        return self._kept[path, name]

    def _finds_kept(self, path: str, name: str) -> bool:
        lines = self.texts[path].splitlines()
        compared = re.compile(rf"\b{re.escape(name)}\b[\"'\])]*\s*(?:==|!=|in\b|not in\b)")
        said = {number for number, line in enumerate(lines, 1) if compared.search(line)}
        said |= self._defining(path, name)
        kept = (lines[number - 1] for number in said - self.moved.get(path, set()))
        return any(self._word.search(line) and not self._target.search(line) for line in kept)

    def _offers(self, path: str, name: str) -> bool:
        """Whether the definition of an option has the origin's word, rewritten by default."""
        lines = self.texts[path].splitlines()
        moved = self._defining(path, name) & self.moved.get(path, set())
        return any(self._word.search(lines[n - 1]) for n in moved)

    @cached_property
    def _word(self) -> re.Pattern[str]:
        return literal(self.job.context.origin)

    @cached_property
    def _target(self) -> re.Pattern[str]:
        return literal(self.job.context.chip)

    def _defining(self, path: str, name: str) -> set[int]:
        """The lines of an option's definitions, up to the bracket that closes."""
        text = self.texts[path]
        found: set[int] = set()
        for match in definition(name).finditer(text):
            at, depth = match.end(), int(match[0][0] in "\"'")
            while depth and at < min(len(text), match.end() + LONGEST):
                depth += {"(": 1, ")": -1}.get(text[at], 0)
                at += 1
            first, last = (text.count("\n", 0, place) + 1 for place in (match.start(), at))
            found.update(range(first, last + 1))
        return found


def loads(text: str) -> bool:
    """Whether a Python file may read configuration files."""
    lower = text.lower()
    return any(word in lower for word in LOADERS)


def literal(chip: Chip) -> re.Pattern[str]:
    """A chip's device or backend as a literal of its own, no word in a sentence."""
    words = f"{re.escape(chip.device)}|(?i:{re.escape(chip.backend)})"
    return re.compile(rf"(?:[=(\[{{,:]|\bin)\s*[\"'](?:{words})[\"':]")


def definition(name: str) -> re.Pattern[str]:
    """An option's definition in Python: `"--name"`, a field `name: str`, a function's parameter."""
    option, word = re.escape(name).replace("_", "[-_]"), re.escape(name)
    return re.compile(
        rf"[\"']-{{0,2}}(?:[\w-]+\.)?{option}[\"'](?=\s*[,)])|(?<=\n)[ \t]+{word}[ \t]*:[ \t]*\w"
        rf"|\bdef \w+\([^)]*\b{word}\b[ \t]*[:=,)]"
    )


def siblings(text: str, start: int) -> set[str]:
    """Keys of the same table as the value at `start`: lines of one indentation in its block."""
    lines = text.splitlines()
    at = text.count("\n", 0, start)
    indent = indentation(lines[at])
    found = set()
    for step in (-1, 1):
        number = at + step
        while 0 <= number < len(lines):
            line = lines[number]
            head = line.strip()
            if head and (indentation(line) < indent or head[0] == "["):
                break
            key = KEY.match(line)
            if key and indentation(line) == indent:
                found.add(key[1].replace("-", "_"))
            number += step
    return found


def indentation(line: str) -> int:
    """How many characters of white space a line begins with."""
    return len(line) - len(line.lstrip())
