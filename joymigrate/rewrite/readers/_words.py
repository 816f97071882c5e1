"""The nouns of shell text, and the reader of single words: quotes, expansions, substitutions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

NAME = re.compile(r"[A-Za-z_]\w*")
# Characters that stand for themselves, outside of quotes and inside of double ones.
PLAIN = re.compile(r"""[^\s;|&()<>\\'"$`}]+""")
QUOTED = re.compile(r"""[^"\\$`]+""")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[[^\]]*\])?\+?=(?!=)")
EXPANDED = "\0"  # stands in a word's value for text that is only known at run time
DEEPEST = 40


@dataclass(slots=True)
class Expansion:
    """`$name` or `${name…}`: the name's place, the whole's, and the default word if it has one."""

    name: str
    start: int  # of the name
    end: int
    whole_start: int  # of the dollar sign
    whole_end: int
    operator: str = ""  # `:-`, `#`, `//` … for the braced form; "" for the plain value
    default: Word | None = None  # the word after `:-`, `-`, `:=`, `=`


@dataclass(slots=True)
class Word:
    """One word: `value` has quotes taken away; `at[k]` is the place of its k-th character."""

    start: int
    end: int
    value: str = ""
    at: list[int] = field(default_factory=list)
    expansions: list[Expansion] = field(default_factory=list)
    quoted: bool = False
    array: bool = False  # `name=(…)`; the elements are a command of their own
    script: bool = False  # shell text handed to a shell; read as a script of its own

    def span(self, first: int, last: int) -> tuple[int, int] | None:
        """Place of `value[first:last]`, or None where quotes or escapes lie inside it."""
        places = self.at[first:last]
        if not places or places[-1] - places[0] != len(places) - 1:
            return None
        return places[0], places[-1] + 1


@dataclass(slots=True)
class Command:
    """One simple command with its redirections taken out.

    `kind` is `command`, `array` (elements of an array), or `pattern` (one arm of a `case`, with
    the subject as its first word).
    """

    words: list[Word] = field(default_factory=list)
    kind: str = "command"
    ends: str = ""  # the operator behind it: `|`, `&&`, `;` …
    piped: bool = False  # its input comes from the command before
    nested: bool = False  # inside `$(…)` or backticks
    targets: list[Word] = field(default_factory=list)  # of redirections
    heredocs: list[Heredoc] = field(default_factory=list)


@dataclass(slots=True)
class Heredoc:
    """The lines of a heredoc. `literal`: its delimiter is quoted, so nothing is expanded."""

    start: int
    end: int
    literal: bool
    expansions: list[Expansion] = field(default_factory=list)


@dataclass(slots=True)
class Script:
    """Everything found in one text. `broken` is where a quote or bracket never closes."""

    commands: list[Command] = field(default_factory=list)
    expansions: list[Expansion] = field(default_factory=list)
    comments: list[tuple[int, int]] = field(default_factory=list)
    broken: int | None = None


class WordReader:
    """Reads words of `text` up to `end`. Methods take a place and return the place behind."""

    def __init__(self, text: str, end: int, script: Script, depth: int = 0) -> None:
        self.text = text
        self.end = end
        self.script = script
        self.depth = depth

    def nested(self, start: int, end: int, closing: str) -> int:
        """The commands of a substitution; who reads commands knows how."""
        raise NotImplementedError

    def word(self, i: int, word: Word, stop: str = " \t\r\n;|&()<>") -> int:
        """One word from `i` up to an unquoted character of `stop`."""
        text = self.text
        while i < self.end and text[i] not in stop:
            char = text[i]
            if char == "\\":
                i = self.escape(i, word)
            elif char == "'":
                i = self.single(i + 1, word)
            elif char == '"':
                word.quoted = True
                i = self.double(i + 1, word)
            elif char == "$":
                i = self.dollar(i, word)
            elif char == "`":
                i = self.backticks(i, word)
            else:
                i = self.run_of(PLAIN, i, word)
            if i < self.end and text[i] == "(" and ASSIGNMENT.fullmatch(word.value):
                i = self.array(i + 1)
                word.array = True
            elif i < self.end and text[i] == "(" and word.value[-1:] in ("@", "?", "+", "*", "!"):
                i = self.group(i, word)
        return i

    def run_of(self, plain: re.Pattern[str], i: int, word: Word) -> int:
        """Characters from `i` on that stand for themselves, at least one."""
        found = plain.match(self.text, i, self.end)
        end = found.end() if found else i + 1
        self.literal(i, end, word)
        return end

    def group(self, i: int, word: Word) -> int:
        """An extended glob `@(a|b)` as literal text."""
        end = self.text.find(")", i, self.end)
        end = self.end if end < 0 else end + 1
        self.literal(i, end, word)
        return end

    def literal(self, start: int, end: int, word: Word) -> None:
        """Add characters that stand for themselves."""
        word.value += self.text[start:end]
        word.at.extend(range(start, end))

    def escape(self, i: int, word: Word) -> int:
        """A backslash: the next character stands for itself; before a line's end, nothing does."""
        if self.text.startswith("\r\n", i + 1):
            return i + 3
        if self.text.startswith("\n", i + 1):
            return i + 2
        self.literal(i + 1, min(i + 2, self.end), word)
        word.quoted = True
        return i + 2

    def single(self, i: int, word: Word) -> int:
        """Text in single quotes, from behind the opening one."""
        word.quoted = True
        end = self.text.find("'", i, self.end)
        if end < 0:
            self.broke(i - 1)
            end = self.end
        self.literal(i, end, word)
        return end + 1

    def double(self, i: int, word: Word, closing: str = '"') -> int:
        """Text in double quotes, from behind the opening one; a heredoc closes nowhere."""
        start = i
        while i < self.end:
            char = self.text[i]
            if char == closing:
                return i + 1
            if char == "\\" and i + 1 < self.end and self.text[i + 1] in '$`"\\\n':
                if self.text[i + 1] != "\n":
                    self.literal(i + 1, i + 2, word)
                i += 2
            elif char == "$":
                i = self.dollar(i, word)
            elif char == "`":
                i = self.backticks(i, word)
            else:
                i = self.run_of(QUOTED, i, word)
        if closing:
            self.broke(start - 1)
        return i

    def dollar(self, i: int, word: Word) -> int:
        """What begins with a dollar sign."""
        text = self.text
        if text.startswith("$((", i):
            return self.arithmetic(i + 1, word)
        if text.startswith("$(", i):
            return self.substitution(i + 2, word)
        if text.startswith("${", i):
            return self.braces(i, word)
        if text.startswith("$'", i) and word.end >= 0:
            return self.single(i + 2, word)
        match = NAME.match(text, i + 1, self.end)
        if match is None:
            special = i + 1 < self.end and text[i + 1] in "@*#?-$!0123456789"
            self.hole(i, word)
            return i + 2 if special else i + 1
        self.add(Expansion(match.group(), match.start(), match.end(), i, match.end()), word)
        return match.end()

    def hole(self, i: int, word: Word) -> None:
        """Text known at run time only."""
        word.value += EXPANDED
        word.at.append(i)

    def add(self, expansion: Expansion, word: Word) -> None:
        """Note an expansion, in the word and for the whole script."""
        self.hole(expansion.whole_start, word)
        word.expansions.append(expansion)
        self.script.expansions.append(expansion)

    def braces(self, i: int, word: Word) -> int:
        """`${name}`, `${name:-word}`, `${#name}`, `${!name}`, `${name//a/b}` …"""
        text = self.text
        match = re.compile(r"\$\{([#!]?)([A-Za-z_]\w*|[0-9@*#?$!-])").match(text, i, self.end)
        if match is None:
            end = self.close(i + 2)
            self.hole(i, word)
            return end
        at = match.end()
        operator = re.compile(r":?[-=+?]|\[[^\]]*\]|##?|%%?|//?|\^\^?|,,?|:|@").match(text, at)
        sign = match[1] or (operator.group() if operator else "")
        expansion = Expansion(match[2], match.start(2), match.end(2), i, i, sign)
        if operator and sign in (":-", "-", ":=", "=", ":+", "+"):
            expansion.default = Word(operator.end(), operator.end())
            end = self.word(operator.end(), expansion.default, stop="}")
            expansion.default.end = end
            end += 1
        else:
            end = self.close(at)
        expansion.whole_end = end
        self.add(expansion, word)
        return end

    def close(self, i: int) -> int:
        """Behind the `}` that closes a brace expansion; expansions inside are read."""
        inside = Word(i, i)
        end = self.word(i, inside, stop="}")
        if end >= self.end:
            self.broke(i)
        return end + 1

    def substitution(self, i: int, word: Word) -> int:
        """The commands of `$(…)`, from behind the opening bracket."""
        self.hole(i - 2, word)
        if self.depth >= DEEPEST:
            self.broke(i)
            return self.end
        return self.nested(i, self.end, ")")

    def backticks(self, i: int, word: Word) -> int:
        """The commands between backticks."""
        match = re.compile(r"`((?:[^`\\]|\\.)*)`", re.DOTALL).match(self.text, i, self.end)
        self.hole(i, word)
        if match is None or self.depth >= DEEPEST:
            self.broke(i)
            return self.end
        before = len(self.script.commands)
        self.nested(match.start(1), match.end(1), "")
        for command in self.script.commands[before:]:
            command.nested = True
        return match.end()

    def array(self, i: int) -> int:
        """The elements of `name=(…)`, from behind the opening bracket."""
        elements = Command(kind="array")
        while i < self.end:
            char = self.text[i]
            if char == ")":
                i += 1
                break
            if char in " \t\r\n;|&<>(":
                i += 1
            elif char == "#":
                i = self.comment(i)
            elif self.text.startswith(("\\\n", "\\\r\n"), i):
                i = self.text.index("\n", i) + 1
            else:
                word = Word(i, i)
                i = max(self.word(i, word), i + 1)
                word.end = i
                elements.words.append(word)
        else:
            self.broke(i)
        self.script.commands.append(elements)
        return i

    def arithmetic(self, i: int, word: Word | None = None) -> int:
        """`((…))`: names inside it are numbers; only expansions with a dollar sign are noted."""
        inside = Word(i, i)
        depth = 0
        while i < self.end:
            char = self.text[i]
            if char == "$":
                i = self.dollar(i, inside)
                continue
            depth += (char == "(") - (char == ")")
            i += 1
            if not depth:
                break
        else:
            self.broke(i)
        if word is not None:
            self.hole(i - 1, word)
        return i

    def broke(self, i: int) -> None:
        """Note the first place from which on nothing is sure."""
        if self.script.broken is None or i < self.script.broken:
            self.script.broken = min(i, len(self.text))

    def comment(self, i: int) -> int:
        """A comment: up to the end of its line."""
        end = self.text.find("\n", i, self.end)
        end = self.end if end < 0 else end
        self.script.comments.append((i, end))
        return end
