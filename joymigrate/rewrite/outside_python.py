"""Edits outside Python that are made by default only where their meaning was seen.

A variable for the runtime moves before a command that runs torch, an option's value where the
program takes a device by it and was moved itself, a setting where a program reads it as a device.
All else waits for `--unsafe`: files of a CI (their machines are the origin's), scripts that speak
of another vendor or framework, words that are part of a name, a file, a target or a command line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from joymigrate.chips import all_chips
from joymigrate.language import Text
from joymigrate.model import Finding, Tier
from joymigrate.rewrite import analyse
from joymigrate.rewrite.files_together import ReachableFiles
from joymigrate.rewrite.option_readers import OptionReaders
from joymigrate.rewrite.programs import Programs
from joymigrate.rewrite.readers import _options
from joymigrate.rewrite.readers._environment import SPEAKS, command_name
from joymigrate.rewrite.readers._migration_map import MigrationMap, migration_map
from joymigrate.rewrite.readers._words import ASSIGNMENT, EXPANDED, Command, Word
from joymigrate.rewrite.source import SourceText, Unreadable, decode, read_text
from joymigrate.rewrite.values.settings_files import KINDS

# Folders and files of build services. Python files too, where the folder can be no package.
HIDDEN = re.compile(
    r"(?:^|/)\.(?:github|ci|circleci|buildkite|gitlab|azure-pipelines|azuredevops|jenkins|travis"
    r"|kokoro|evergreen|drone|woodpecker|semaphore|tekton|teamcity)/"
)
PIPELINES = re.compile(
    r"(?:^|/)(?:ci|jenkins|buildkite|azure-pipelines)/|(?:^|/)(?:\.gitlab-ci|\.travis|\.drone"
    r"|\.cirrus|azure-pipelines|bitbucket-pipelines|cloudbuild|buildspec|appveyor|Jenkinsfile)[^/]*$"
)
VENDORS = frozenset(
    ("hip", "rocr", "hpu", "gaudi", "habana", "xpu", "oneapi", "sycl", "tpu", "metal")
)
FRAMEWORKS = frozenset(("tensorflow", "jax", "keras", "paddle", "mxnet", "xla"))
TOOLS = frozenset(("tensorrt", "trtexec", "trtllm", "tritonserver"))  # run on the origin alone
READ = re.compile(r"(?:get\w*\(|environ\[)\s*[\"'](\w+)[\"']\]?(?!\]?\s*=[^=])")
ROUNDS = 4  # of variables that wait for each other
VALUES = ("JM111", "JM120", "JM121", "JM130")

CI = "a file of the CI: its machines are the old platform's, and an edit here moves none of them"
VENDOR = "this file speaks of {word} as well"
PROGRAM = "nothing here says that what runs with it uses PyTorch"
TOOL = "this script asks {tool}, which stays"
OPTION = "no program of the project was seen to take a device or backend by {key}, and to move"
NAME = "{name} is more than a device here: a name, or a word that others give"
KEY = "no program of the project was seen to read {key} as a device or backend"
TWIN = "{path} beside it serves {device}"
EXPORTED = "{name} is not handed to any program here"
LINKED = "it goes with {path}, where {name} waits"


@dataclass(frozen=True, slots=True)
class ScriptPlace:
    """One edit of a script: where it begins, the command and the word that hold it."""

    source: SourceText
    start: int
    command: Command
    word: Word

    @property
    def path(self) -> str:
        """The script."""
        return self.source.path

    @property
    def runs(self) -> list[Word]:
        """The words of the command without the assignments before it."""
        return [word for word in self.command.words if not ASSIGNMENT.match(word.value)]

    @property
    def alone(self) -> bool:
        """Whether a variable is set for this command only: `NAME=0 python train.py`."""
        if not self.runs or not ASSIGNMENT.match(self.word.value):
            return False
        wrapped = command_name(self.command.words) in ("env", "sudo", "nohup", "srun")
        return self.word.start < self.runs[0].start or wrapped


class Unseen:
    """Decides which edits outside Python wait, and why."""

    def __init__(
        self,
        findings: list[Finding],
        results: Iterable[analyse.FileAnalysis],
        reached: ReachableFiles,
        job: analyse.ScanContext,
        texts: Mapping[str, str],
    ) -> None:
        files = reached.files
        self.findings, self.files, self.job, self.texts = findings, files, job, texts
        self.moves: MigrationMap = migration_map(job.context)
        self.programs = Programs(reached, texts)
        # Variables: the script, its programs, whether it is set for one command.
        self.shared: dict[int, tuple[str, list[str], bool]] = {}
        self.options = OptionReaders(findings, results, files, job, self.programs)

    def reasons(self) -> Iterator[tuple[int, str]]:
        """Numbers of the findings that wait, with the reason of each."""
        by_path: dict[str, list[int]] = {}
        for number, one in enumerate(self.findings):
            if one.edits and one.tier is Tier.SAFE and one.path in self.files:
                by_path.setdefault(one.path, []).append(number)
        for path, numbers in by_path.items():
            kind = self.files[path].kind
            if HIDDEN.search(path) or (kind != "python" and PIPELINES.search(path)):
                yield from ((number, CI) for number in numbers)
            elif kind not in ("python", "notebook"):
                yield from self._of_file(path, numbers)

    def wait(self, reasons: Iterable[tuple[int, str]]) -> bool:
        """Let findings wait; whether there were any."""
        fresh = list(reasons)
        for number, reason in fresh:
            one = self.findings[number]
            self.findings[number] = one.doubt(Text.of(reason))
            self.shared.pop(number, None)
        return bool(fresh)

    def linked(self) -> Iterator[tuple[int, str]]:
        """Variables that are shared with a program or script where they wait."""
        left = {} if self.moves.agnostic else self._left()
        for number, (path, paths, alone) in self.shared.items():
            name = self.variable(number)
            for other in sorted(left.get(name, set()) - {path}):
                if other in self.texts:
                    goes = any(other in self.programs.below(each) for each in paths)
                else:
                    goes = not alone and self._calls(path, other)
                if goes:
                    yield number, Text(LINKED, path=other, name=name)
                    break

    def _of_file(self, path: str, numbers: list[int]) -> Iterator[tuple[int, str]]:
        mine = [n for n in numbers if self.findings[n].rule in VALUES or self.variable(n)]
        if not mine:
            return
        try:
            source = decode(path, self.files[path].path.read_bytes(), python=False)
        except (OSError, Unreadable):
            return
        whole = self._whole(path, source)
        if whole:
            yield from ((number, whole) for number in mine)
        elif self.files[path].kind in KINDS:
            for number in mine:
                reason = self._setting(source, self.findings[number])
                if reason:
                    yield number, reason
        elif self.files[path].kind == "shell":
            for number in mine:
                reason = self._of_script(source, number)
                if reason:
                    yield number, reason

    def _of_script(self, source: SourceText, number: int) -> str:
        """Why an edit of a script waits; a variable that is shared waits at all of its places."""
        name, place = self.variable(number), self._place(source, self.findings[number])
        if not name:
            return self._value(place) if place else Text(OPTION, key=self.findings[number].before)
        if place is not None and place.alone:
            return self._variable(number, place, name)
        whys = (
            self._asked(source, word)
            for command in self.programs.script(source.path).commands
            for word in command.words
            if word.value.startswith(f"{name}=")
        )
        why = next(filter(None, whys), "")
        return why or self._variable(number, place or source, name)

    def _asked(self, source: SourceText, word: Word) -> str:
        """The tool of the origin that decides about an assignment: by its output, or by an `if`."""
        before = source.text[: word.start]
        value = source.text[word.start : word.end]
        read = "|".join(re.findall(r"\$\{?(\w+)", value))  # inside of substitutions too
        for tool in self.moves.tools:
            if tool not in source.text:
                continue
            name = re.escape(tool)
            kept = read and re.search(rf"\b(?:{read})=[^\n]*(?:\$\(|`)[^\n]*\b{name}\b", before)
            last = list(re.finditer(rf"\b(?:if|elif)\b[^\n]*\b{name}\b", before))
            inside = last and not re.search(r"(?m)^\s*fi\b", before[last[-1].end() :])
            blocks = re.findall(rf"(?ms)\bif\b[^\n]*\b{name}\b.*?^\s*fi\b", before)
            chosen = read and any(re.search(rf"\b(?:{read})=", block) for block in blocks)
            if kept or inside or chosen or tool in value:
                return Text(TOOL, tool=tool)
        return ""

    def variable(self, number: int) -> str:
        """The environment variable that a finding renames, empty for another one."""
        named = re.match(r"\$?\{?([A-Z][A-Z0-9_]+)", self.findings[number].before)
        return named[1] if named and self.moves.variable(named[1]) else ""

    # --- whole files --------------------------------------------------------------------------

    def _whole(self, path: str, source: SourceText) -> str:
        """Why nothing of a file is moved."""
        origin, chip = self.job.context.origin, self.job.context.chip
        if origin.device == chip.device:
            return ""
        twin = self._twin(path)
        if twin:
            return Text(TWIN, path=twin, device=chip.device)
        code = self._code(path, source)
        said = {word.lower() for word in re.findall(r"[A-Za-z]+", f"{path}\n{code}")}
        names = {
            name for one in all_chips().values() for name in (one.name, *one.aliases, one.device)
        }
        names -= {origin.device, origin.name, *origin.aliases, "gpu", "cpu"}
        names -= {chip.device, chip.name, *chip.aliases}
        for word in sorted(said & (VENDORS | FRAMEWORKS | TOOLS | names)):
            return Text(VENDOR, word=word)
        return ""

    def _twin(self, path: str) -> str:
        """The file beside a file that does the same for the target: `run_<target>.sh`."""
        folder, slash, name = path.rpartition("/")
        stem, dot, ending = name.partition(".")
        origin, chip = self.job.context.origin, self.job.context.chip
        for word in (chip.device, chip.name):
            swapped = re.sub(rf"(?<![a-z])(?:{origin.device}|gpu)(?![a-z])", word, stem)
            for other in {swapped, f"{stem}_{word}", f"{stem}-{word}"} - {stem}:
                if f"{folder}{slash}{other}{dot}{ending}" in self.files:
                    return f"{folder}{slash}{other}{dot}{ending}"
        return ""

    def _code(self, path: str, source: SourceText) -> str:
        """A file's text without its comments."""
        if self.files[path].kind != "shell":
            return re.sub(r"(?m)(?:^|\s)#.*$", "", source.text)
        text, at, parts = source.text, 0, []
        for start, end in sorted(self.programs.script(path).comments):
            parts.append(text[at:start])
            at = max(at, end)
        return "".join([*parts, text[at:]])

    # --- variables ----------------------------------------------------------------------------

    def _place(self, source: SourceText, finding: Finding) -> ScriptPlace | None:
        """The innermost command that holds an edit."""
        start = source.starts[finding.line - 1] + finding.column - 1
        holding = [
            ScriptPlace(source, start, command, word)
            for command in self.programs.script(source.path).commands
            for word in command.words
            if word.start <= start < word.end
        ]
        return max(holding, key=lambda each: each.command.words[0].start, default=None)

    def _variable(self, number: int, place: ScriptPlace | SourceText, name: str) -> str:
        """Why a variable waits: what runs with it is no program of torch, as far as is known."""
        path, paths, answer = place.path, list[str](), None
        only = place if isinstance(place, ScriptPlace) and place.alone else None
        if only is not None:
            paths, answer = self.programs.of(path, only.command)
        if answer is None:
            paths, answer = self.programs.of_script(path)
        if answer is False and only is None:
            above = (self.programs.of_script(other)[1] for other in self.programs.callers(path))
            answer = any(each is True for each in above)
        if not (self.programs.plain if answer is None else answer):
            return PROGRAM
        bare = place if isinstance(place, ScriptPlace) and not place.runs else None
        if self.moves.agnostic and bare is not None and not serves_a_program(bare, name):
            return Text(EXPORTED, name=name)
        self.shared[number] = path, paths, only is not None
        return ""

    def _left(self) -> dict[str, set[str]]:
        """Files that read a variable of the origin and keep it by default, by the variable."""
        found: dict[str, set[str]] = {}
        reading = {path: t.splitlines() for path, t in self.texts.items() if "environ" in t}
        for number, one in enumerate(self.findings):
            if (one.edits and one.tier is Tier.SAFE) or one.path not in self.files:
                continue
            name = ""
            if one.path not in self.texts and self.files[one.path].kind == "shell":
                name = self.variable(number)
            elif one.path in reading:
                lines = reading[one.path][one.line - 1 : one.line]
                read = READ.search("".join(lines))
                name = read[1] if read and self.moves.variable(read[1]) else ""
            if name:
                found.setdefault(name, set()).add(one.path)
        return found

    def _calls(self, path: str, other: str) -> bool:
        return other in self.programs.callers(path) or path in self.programs.callers(other)

    # --- values of options and variables of scripts --------------------------------------------

    def _value(self, place: ScriptPlace) -> str:
        """Why a device or backend waits: its option or its variable was not seen to be one."""
        command, word = place.command, place.word
        for key, value, at in _options.pairs(command):
            if value is word and place.start >= (value.at[at] if at < len(value.at) else 0):
                return self._option(place.path, command, key)
        if command.kind == "array":
            return self._option(place.path, command, word.value)
        names = {each.name for each in word.expansions}
        if match := ASSIGNMENT.match(word.value):
            names = {match[1]}
        elif tests(command):
            names = {each.name for one in command.words for each in one.expansions}
        elif command.words[0].value == "for":
            names = {command.words[1].value}
        whys = (self._shell_variable(place.source, name) for name in sorted(names) or [word.value])
        return next(filter(None, whys), "")

    def _option(self, path: str, command: Command, key: str) -> str:
        """Why an option's value waits: what the command runs was not seen to take a device."""
        array = command.kind == "array"
        paths, _ = self.programs.of_script(path) if array else self.programs.of(path, command)
        name = key.strip("-+~").rpartition(".")[2].replace("-", "_").lower()
        if paths and self.options.takes(tuple(paths), name, loose=not key.startswith("-")):
            return ""
        return Text(OPTION, key=key)

    def _shell_variable(self, source: SourceText, name: str) -> str:
        """Why the values of a script's variable wait.

        It moves where all that happens to it is: it is given to options that take a device, is
        printed, or is compared with words of this script. A value from outside is not compared.
        """
        handed = outside = here = compared = False
        for command in self.programs.script(source.path).commands:
            words, runs = command.words, command_name(command.words)
            given = {id(word): (key, at) for key, word, at in _options.pairs(command)}
            here |= [word.value for word in words[:2]] == ["for", name]
            outside |= runs == "read" and name in (word.value for word in words)
            for word in words:
                match = ASSIGNMENT.match(word.value)
                if match and match[1] == name and command.kind == "command":
                    if runs not in ("", "local", "readonly", "declare"):
                        return Text(NAME, name=name)  # a program's environment
                    here = True
                    why = self._asked(source, word)
                    if why:
                        return why
                    outside |= "$" in source.text[word.start : word.end]
                elif any(each.name == name for each in word.expansions):
                    key, at = given.get(id(word), ("", 0))
                    if tests(command):
                        compared = True
                    elif key and word.value[at:] == EXPANDED:
                        handed |= not self._option(source.path, command, key)
                        if not handed:
                            return Text(NAME, name=name)
                    elif runs not in SPEAKS:
                        return Text(NAME, name=name)
            if any(each.name == name for target in command.targets for each in target.expansions):
                return Text(NAME, name=name)
        alien = outside and (compared or self._given_elsewhere(source.path))
        return "" if handed and not alien and (here or not compared) else Text(NAME, name=name)

    def _given_elsewhere(self, path: str) -> bool:
        """Whether another file calls a script with the origin's device as a word."""
        device = re.escape(self.job.context.origin.device)
        call = re.compile(rf"(?<![\w.-]){re.escape(path.rpartition('/')[2])}\b[^\n]*\b{device}\b")
        others = (file for name, file in self.files.items() if name != path)
        return any(file.kind != "python" and call.search(read_text(file.path)) for file in others)

    # --- settings -------------------------------------------------------------------------------

    def _setting(self, source: SourceText, finding: Finding) -> str:
        """Why a value of a configuration file waits."""
        start = source.starts[finding.line - 1] + finding.column - 1
        key = key_before(source.text, start)
        name = key.rpartition(".")[2].replace("-", "_")
        if key and self.options.reads(source.path, source.text, start, name):
            return ""
        return Text(KEY, key=key or finding.before)


def key_before(text: str, start: int) -> str:
    """The key of a value in YAML, JSON, TOML or INI; an item of a list has none."""
    line = text[text.rfind("\n", 0, start) + 1 : start]
    found = re.search(r"[\"']?([\w.-]+)[\"']?\s*[:=]\s*[\"']?$", line)
    return found[1] if found and not re.match(r"\s*-\s+[A-Z_]+=", line) else ""


def tests(command: Command) -> bool:
    """Whether a command compares: `[ … ]`, an arm of a `case`."""
    return command.kind == "pattern" or bool(
        command.words and command.words[0].value in _options.TESTS
    )


def serves_a_program(place: ScriptPlace, name: str) -> bool:
    """Whether a second variable with the same value would reach a program: `export NAME`.

    Not where the value holds the variable itself: it is another one when it is read again.
    """
    text = place.source.text
    exported = re.search(rf"\b(?:export|declare|env)\b[^\n]*\b{name}\b|set -a\b", text)
    return exported is not None and f"${name}" not in text[place.word.start : place.word.end]


def leave_unseen(
    findings: Iterable[Finding],
    results: Iterable[analyse.FileAnalysis],
    reached: ReachableFiles,
    job: analyse.ScanContext,
    texts: Mapping[str, str],
) -> list[Finding]:
    """The findings; edits outside Python wait for a look where their meaning was not seen."""
    decide = Unseen(list(findings), results, reached, job, texts)
    decide.wait(decide.reasons())
    for _ in range(ROUNDS):
        if not decide.wait(decide.linked()):
            break
    for module in job.opened.values():
        module.names.release()
    job.opened.clear()
    return decide.findings
