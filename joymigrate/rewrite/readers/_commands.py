"""Shell text → commands, words and parameter expansions, each with its place in the text.

Reads sh, bash, zsh and ksh well enough to know comments, quotes, heredocs, substitutions, arrays
and `case` patterns apart. Nothing is run or expanded. What it does not know: aliases, `eval`, and
which branch is taken.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from joymigrate.rewrite.readers._words import Command, Heredoc, Script, Word, WordReader

RESERVED = frozenset(
    (
        *("if", "then", "elif", "else", "fi", "while", "until", "do", "done"),
        *("select", "in", "esac", "!", "{", "}", "time", "coproc"),
    )
)


def read(text: str, start: int = 0, end: int | None = None) -> Script:
    """The script in `text[start:end]`; every place counts from the beginning of `text`."""
    script = Script()
    CommandReader(text, len(text) if end is None else end, script).commands(start)
    return script


@dataclass(slots=True)
class PendingHeredoc:
    """A heredoc whose lines begin after this line."""

    delimiter: str
    strip_tabs: bool
    literal: bool
    command: Command


class CommandReader(WordReader):
    """Reads commands; a place is the offset in the whole text."""

    def __init__(self, text: str, end: int, script: Script, depth: int = 0) -> None:
        super().__init__(text, end, script, depth)
        self.pending: list[PendingHeredoc] = []
        self.cases: list[Word | None] = []
        self.arm = False  # a `case` pattern is expected

    def nested(self, start: int, end: int, closing: str) -> int:
        """The commands of a substitution, read by a reader of their own."""
        inner = CommandReader(self.text, end, self.script, self.depth + 1)
        return inner.commands(start, closing)

    def commands(self, i: int, closing: str = "") -> int:
        """Every command from `i` on; with `closing` `)`, up to the bracket that closes."""
        text, nested = self.text, bool(closing)
        command = Command(nested=nested)
        brackets = 0
        while i < self.end:
            char = text[i]
            if char in " \t\r":
                i += 1
            elif text.startswith(("\\\n", "\\\r\n"), i):
                i = text.index("\n", i) + 1
            elif char == "\n":
                command = self.finish(command, "\n", nested)
                i = self.heredocs(i + 1)
            elif char == "#":
                i = self.comment(i)
            elif self.arm and not self.at_word("esac", i):
                self.arm = False
                i = self.pattern(i)
            elif text.startswith("((", i) and not command.words:
                i = self.arithmetic(i)
            elif char == "(":
                command, i = self.finish(command, "(", nested), i + 1
                brackets += 1
            elif char == ")":
                command = self.finish(command, ")", nested)
                i += 1
                if closing and not brackets:
                    return i
                brackets = max(0, brackets - 1)
            elif text.startswith(("<(", ">("), i):
                i = self.substitution(i + 2, Word(i, i))
            elif char in "<>" or text.startswith("&>", i):
                i = self.redirection(i, command)
            elif char in ";|&":
                i, operator = self.operator(i)
                command = self.finish(command, operator, nested)
            else:
                i = self.argument(i, command)
        self.finish(command, "", nested)
        if closing:
            self.broke(i)
        return i

    def finish(self, command: Command, operator: str, nested: bool) -> Command:
        """Close a command and begin the next one."""
        command.ends = operator
        if command.words or command.heredocs:
            self.script.commands.append(command)
            first = command.words[0].value if command.words else ""
            if first == "case" and len(command.words) > 2 and command.words[2].value == "in":
                self.cases.append(command.words[1])
                self.arm = True
            elif first == "esac" and self.cases:
                self.cases.pop()
                self.arm = False
        if operator in (";;", ";&", ";;&") and self.cases:
            self.arm = True
        return Command(nested=nested, piped=operator in ("|", "|&"))

    def operator(self, i: int) -> tuple[int, str]:
        """A control operator at `i`."""
        for known in (";;&", ";;", ";&", "&&", "||", "|&"):
            if self.text.startswith(known, i):
                return i + len(known), known
        return i + 1, self.text[i]

    def argument(self, i: int, command: Command) -> int:
        """One word of a command; reserved words before the command's name are dropped."""
        word = Word(i, i)
        i = self.word(i, word)
        if i == word.start:  # a character that no rule knows
            return i + 1
        word.end = i
        plain = not word.quoted and not word.expansions
        if not command.words and plain and word.value in RESERVED and word.value != "esac":
            return i
        if plain and word.value.isdigit() and i < self.end and self.text[i] in "<>":
            return i  # the number of a redirection
        command.words.append(word)
        three = command.words[:3]
        if len(three) == 3 == len(command.words) and three[0].value == "case" and plain:
            return self.case_head(i, command) if word.value == "in" else i
        return i

    def case_head(self, i: int, command: Command) -> int:
        """`case word in`: the first pattern may stand on the same line."""
        self.finish(Command(words=command.words, nested=command.nested), "\n", command.nested)
        command.words = []
        return i

    def at_word(self, word: str, i: int) -> bool:
        """Whether the unquoted `word` stands at `i`."""
        return bool(re.compile(rf"{word}(?![\w-])").match(self.text, i, self.end))

    def pattern(self, i: int) -> int:
        """One arm of a `case`, up to and with its `)`."""
        arm = Command(kind="pattern")
        subject = self.cases[-1] if self.cases else None
        if subject is not None:
            arm.words.append(subject)
        while i < self.end:
            char = self.text[i]
            if char == ")":
                i += 1
                break
            if char in " \t\r|(":
                i += 1
                continue
            if char in "\n;&<>#":
                break
            word = Word(i, i)
            after = self.word(i, word)
            word.end = after
            arm.words.append(word)
            i = max(after, i + 1)
        self.script.commands.append(arm)
        return i

    def redirection(self, i: int, command: Command) -> int:
        """A redirection with its target, or the head of a heredoc."""
        text = self.text
        match = re.compile(r"&>>?|<<<|<<-?|[<>]+[&|]?|[<>]").match(text, i, self.end)
        assert match is not None  # the caller saw one of these characters
        i = match.end()
        while i < self.end and text[i] in " \t":
            i += 1
        target = Word(i, i)
        i = self.word(i, target)
        target.end = i
        if match.group() in ("<<", "<<-"):
            literal = target.quoted
            delimiter = text[target.start : target.end] if not literal else target.value
            self.pending.append(PendingHeredoc(delimiter, match.group() == "<<-", literal, command))
        else:
            command.targets.append(target)
        return i

    def heredocs(self, i: int) -> int:
        """The heredocs whose heads stood on the line before `i`."""
        for each in self.pending:
            start = i
            while i < self.end:
                stop = self.text.find("\n", i, self.end)
                stop = self.end if stop < 0 else stop
                line = self.text[i:stop].rstrip("\r")
                if (line.lstrip("\t") if each.strip_tabs else line) == each.delimiter:
                    break
                i = min(stop + 1, self.end)
            else:
                stop = i
                self.broke(start)
            heredoc = Heredoc(start, i, each.literal)
            if not each.literal:
                word = Word(start, i)
                CommandReader(self.text, i, self.script, self.depth + 1).double(
                    start, word, closing=""
                )
                heredoc.expansions = word.expansions
            each.command.heredocs.append(heredoc)
            i = min(stop + 1, self.end)
        self.pending = []
        return i
