"""The words of our reports, by key; longer texts are in the catalogues."""

from __future__ import annotations

from joymigrate.language import Language, Words, current_language
from joymigrate.rewrite.effort import MINUTES_PER_DAY, EffortModel

WORDS = Words("labels")


class Labels:
    """The words of one language, of that which is spoken unless another is named: `say("sites")`.

    An unknown key is our bug and raises KeyError.
    """

    def __init__(self, lang: str | None = None) -> None:
        self.lang = lang or current_language()
        self.tell = Language(self.lang)

    def __call__(self, key: str, **fields: object) -> str:
        """The words for `key`, with its fields filled in."""
        return WORDS(key, self.lang, **fields)

    def area(self, name: str) -> str:
        """An area's name; one that a plug-in adds keeps its own."""
        key = f"area_{name}"
        return self(key) if key in WORDS else name

    def duration(self, minutes: float) -> str:
        """A duration as people say it; a day has eight hours."""
        if minutes == 0:
            return self("duration_none")
        if minutes < 1:
            return self("duration_s", number=f"{minutes * 60:.0f}")
        if minutes < 90:
            return self("duration_min", number=f"{minutes:.0f}")
        if minutes < MINUTES_PER_DAY * 1.5:
            return self("duration_h", number=f"{minutes / 60:.1f}")
        return self("duration_days", number=f"{minutes / MINUTES_PER_DAY:.1f}")

    def model(self, model: EffortModel, *, portfolio: bool = False) -> list[str]:
        """An effort model in words, one fact per line."""
        lines = [
            self("model_safe", minutes=self.duration(model.safe)),
            self("model_unsafe", minutes=self.duration(model.unsafe)),
            self("model_weight")
            if model.report is None
            else self("model_report", minutes=self.duration(model.report)),
            self("model_repeat", share=f"{model.repeat:.0%}"),
        ]
        if portfolio:
            lines.append(self("model_learned", share=f"{model.learned:.0%}"))
        lines += [f"{self.area(key)}: {self.duration(m)}" for key, m in model.areas.items()]
        return lines + [f"{key}: {self.duration(m)}" for key, m in model.rules.items()]
