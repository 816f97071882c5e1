"""Reasoning told apart from the answer: `reasoning_content`, for models that think in the open."""

from __future__ import annotations

from dataclasses import dataclass

from joymigrate.run.serve.engine.text import longest_start

# Marks around reasoning, as templates teach them: Qwen3, DeepSeek and GLM; Magistral; Seed.
MARKS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
)
START, INSIDE, ENDED, OUTSIDE = "start", "inside", "ended", "outside"


def find_marks(template: str) -> tuple[str, str] | None:
    """The marks that a chat template knows; None: the model does not reason in the open."""
    return next((marks for marks in MARKS if marks[1] in template), None)


@dataclass(slots=True)
class ThoughtReader:
    """Turns text that arrives in pieces into thoughts and words. `place`: where the text stands.

    A text that does not begin with the mark has no thoughts, unless its prompt opened them.
    """

    begin: str
    end: str
    place: str = START
    held: str = ""
    tokens: int = 0  # of the thoughts

    def feed(self, text: str, tokens: int, *, last: bool) -> tuple[str, str]:
        """Thoughts and words that are certain by now; `last`: nothing more comes."""
        self.held += text
        if self.place == START and not self.begun(last):
            return "", ""
        thoughts = ""
        if self.place == INSIDE:
            self.tokens += tokens
            thoughts, mark, rest = self.held.partition(self.end)
            if not mark:
                safe = len(thoughts) - (0 if last else longest_start(thoughts, (self.end,)))
                self.held = thoughts[safe:]
                return thoughts[:safe], ""
            self.place, self.held = ENDED, rest
        if self.place == ENDED:  # blank lines part thoughts from words
            self.held = self.held.lstrip("\n")
            self.place = OUTSIDE if self.held else ENDED
        words, self.held = self.held, ""
        return thoughts, words

    def begun(self, last: bool) -> bool:
        """Whether it is known how the text begins."""
        start = self.held.lstrip()
        if start.startswith(self.begin):
            self.place, self.held = INSIDE, start[len(self.begin) :]
        elif last or not self.begin.startswith(start):
            self.place = OUTSIDE
        return self.place != START
