"""Texts that keep their template and fields, so that a report can say them in another language.

A `Text` is the English sentence; its template is the key of gettext's catalogues
(`rules/common/zh/*.po`, `rules/<chip>/zh.po`). A sentence without a translation stays English. A
report's own words go by key (`Words`), their English texts are translated like all others. A
language is a folder of `rules/common` with a `language.yaml`.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from joymigrate.data import folders, rules_root
from joymigrate.errors import JoyError, did_you_mean
from joymigrate.schema import read_yaml

FIELD = re.compile(r"\{([^{}\s]+)\}")
PLURALS = ("s", "es")
JOINED = re.compile(r"\{p0\}(?:; or \{p\d\})+")  # `Text.join("; or ", …)`
HAN = re.compile(r"[\u3400-\u9fff]")
T = TypeVar("T")


class Text(str):
    """An English sentence made of a template and its fields.

    `Text("needs {package}", package="x")` is the str "needs x" and remembers both parts. Only
    names among the fields are replaced: other braces of a template stay, rules quote code.
    """

    template: str
    fields: Mapping[str, str]

    def __new__(cls, template: str, /, **fields: object) -> Text:
        """The text with its fields filled in; a field that is a `Text` is translated as well."""
        known = {key: one if isinstance(one, str) else str(one) for key, one in fields.items()}
        made = super().__new__(cls, fill(template, known))
        made.template = template
        made.fields = known
        return made

    @classmethod
    def of(cls, text: str) -> Text:
        """A str as a `Text`; one that is a `Text` already as it is."""
        return text if isinstance(text, Text) else cls(text)

    @classmethod
    def join(cls, separator: str, parts: Iterable[str]) -> Text:  # type: ignore[override]
        """`separator.join(parts)` of which each part can still be translated."""
        found = [part for part in parts if part]
        if len(found) == 1:
            return cls.of(found[0])
        template = separator.join(f"{{p{number}}}" for number in range(len(found)))
        return cls(template, **{f"p{number}": part for number, part in enumerate(found)})

    def filled(self, **fields: object) -> Text:
        """The same template with more of its fields known."""
        return Text(self.template, **{**self.fields, **fields})

    def __add__(self, other: str) -> Text:
        return Text("{p0}{p1}", p0=self, p1=other)

    def __radd__(self, other: str) -> Text:
        return Text("{p0}{p1}", p0=other, p1=self)

    def __reduce__(self) -> tuple[Any, ...]:
        return compose, (self.template, dict(self.fields))


def compose(template: str, fields: Mapping[str, str]) -> Text:
    """A `Text` of its two parts."""
    return Text(template, **fields)


def fill(template: str, fields: Mapping[str, str]) -> str:
    """Replace `{name}` for the names among `fields`, once; other braces stay.

    `{name_s}` and `{name_es}` are the plural's ending beside a field that is a number.
    """
    if not fields:
        return template

    def said(match: re.Match[str]) -> str:
        name = match[1]
        if name in fields:
            return fields[name]
        number, _, ending = name.rpartition("_")
        if ending in PLURALS and number in fields:
            return "" if fields[number] == "1" else ending
        return match[0]

    return FIELD.sub(said, template)


def count_noun(number: int, noun: str) -> str:
    """`1 site`, `2 sites`, in English."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def sidecar(document: Any) -> dict[str, dict[str, Any]]:
    """Template and fields of every composed text inside plain data: the key is the sentence.

    Written beside a JSON document as `texts`, it lets a later report translate them.
    """
    found: dict[str, dict[str, Any]] = {}
    pending = [document]
    while pending:
        one = pending.pop()
        if isinstance(one, Text):
            itself = str(one) in one.fields.values()  # one part alone: that part tells more
            if one.fields and str(one) not in found and not itself:
                found[str(one)] = {"template": one.template, "fields": dict(one.fields)}
            pending += one.fields.values()
        elif one is None or isinstance(one, (str, int, float)):
            continue
        elif isinstance(one, (list, tuple)):
            pending += one
        elif isinstance(one, (dict, Mapping)):
            pending += one.values()
    return dict(sorted(found.items()))


def with_texts(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with its `texts`, where it has composed ones."""
    texts = sidecar(document)
    return (
        {**document, "texts": {**document.get("texts", {}), **texts}} if texts else dict(document)
    )


@dataclass(frozen=True, slots=True)
class Traits:
    """What a language says of itself in its `language.yaml`."""

    tag: str  # BCP 47, for pages
    name: str
    marks: Mapping[str, str]  # list, clause, colon, semicolon, or, open, close, stop
    wide: bool = False  # full-width punctuation beside its words


@functools.cache
def languages() -> tuple[str, ...]:
    """The languages that reports speak: folders of `rules/common`, English first."""
    found = sorted(path.parent.name for path in (rules_root() / "common").glob("*/language.yaml"))
    return ("en", *(name for name in found if name != "en"))


@functools.cache
def traits(lang: str) -> Traits:
    """What a language says of itself."""
    return Traits(**read_yaml(rules_root() / "common" / lang / "language.yaml"))


class Words:
    """Texts of a report by key, of `rules/common/en/words/<name>.yaml`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __contains__(self, key: object) -> bool:
        return key in read_texts(self.name)

    def __iter__(self) -> Iterator[str]:
        return iter(read_texts(self.name))

    def template(self, key: str, lang: str | None = None) -> str:
        """The text for `key` with its fields open, in the language that `tell` speaks unless
        another is named; English where that has none.

        A translation of this key alone has `<name>.<key>` as its context (`msgctxt`). An unknown
        key is our bug and raises KeyError.
        """
        english = read_texts(self.name)[key]
        lang = lang or current_language()
        if lang == "en":
            return english
        known = Language(lang).catalogue
        return known.get(in_context(f"{self.name}.{key}", english)) or known.get(english, english)

    def __call__(self, key: str, lang: str | None = None, **fields: object) -> str:
        """The text for `key`, filled in."""
        return fill(self.template(key, lang), {name: str(one) for name, one in fields.items()})


@functools.cache
def read_texts(name: str) -> Mapping[str, str]:
    """One file of English texts by key."""
    return dict(read_yaml(rules_root() / "common" / "en" / "words" / f"{name}.yaml"))


class Language:
    """One language: `say(text)` is the text in it, `say(template, field=…)` a composed one.

    `texts` is what `sidecar` wrote beside a document. An unknown language raises `JoyError`.
    """

    def __init__(self, lang: str = "en", texts: Mapping[str, Any] | None = None) -> None:
        if lang not in languages():
            raise JoyError(
                f"unknown language '{lang}'.{did_you_mean(lang, languages())}",
                where="--lang",
                help=f"one of {', '.join(languages())}",
            )
        self.lang = lang
        self.traits = traits(lang)
        self.texts = texts or {}
        self.catalogue = catalogue(lang)

    def __call__(self, text: str, /, **fields: object) -> str:
        """The text in this language; English where no catalogue has it."""
        if self.lang == "en":
            return Text(text, **fields) if fields else text
        if fields:
            return self.composed(text, {k: v if isinstance(v, str) else str(v)
                                        for k, v in fields.items()})  # fmt: skip
        if isinstance(text, Text):
            return self.composed(text.template, text.fields)
        if text in self.texts:
            known = self.texts[text]
            return self.composed(known["template"], known["fields"])
        return self.catalogue.get(text, text)

    def composed(self, template: str, fields: Mapping[str, str]) -> str:
        """A template in this language with its fields translated and filled in."""
        found = self.catalogue.get(template)
        if found is None and JOINED.fullmatch(template):
            found = template.replace("; or ", self.traits.marks["or"])
        if found is None and not re.search(r"\w", FIELD.sub("", template)):
            said = {key: self(value) for key, value in fields.items()}
            if self.traits.wide and any(map(HAN.search, said.values())):
                return fill(punctuate(template, self.traits), said).replace("。 ", "。")
            return fill(template, said)
        if found is None:
            return fill(template, fields)
        return fill(found, {key: self(value) for key, value in fields.items()})

    def inside(self, data: T) -> T:
        """Plain data with every text inside it in this language; keys stay."""
        if isinstance(data, str):
            return self(data)  # type: ignore[return-value]
        if isinstance(data, Mapping):
            return {key: self.inside(one) for key, one in data.items()}  # type: ignore[return-value]
        if isinstance(data, list):
            return [self.inside(one) for one in data]  # type: ignore[return-value]
        if isinstance(data, tuple):
            return tuple(self.inside(one) for one in data)  # type: ignore[return-value]
        return data


def punctuate(template: str, traits: Traits) -> str:
    """A template of fields and punctuation alone with the language's punctuation."""
    for name in ("semicolon", "list", "colon", "open", "close", "stop"):
        template = template.replace(english_marks()[name], traits.marks[name])
    return template


def english_marks() -> Mapping[str, str]:
    """The marks of the texts as they are written."""
    return traits("en").marks


def mark(name: str) -> str:
    """A mark of the language that `tell` speaks, such as the `list` one: what stands between parts.

    Its names stand in `language.yaml`; another one raises KeyError.
    """
    return traits(current_language()).marks[name]


def bracket(text: str, say: Language) -> str:
    """Text in brackets behind other text, in the language's kind of brackets."""
    return f"{say.traits.marks['open']}{text}{say.traits.marks['close']}"


def width(text: str) -> int:
    """Columns that a text takes on a terminal: Chinese characters take two."""
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1
        for one in text
    )


def pad(text: str, columns: int) -> str:
    """The text with spaces behind it up to a width in columns of a terminal."""
    return text + " " * max(columns - width(text), 0)


def columns(rows: Sequence[Sequence[str]], *, right: bool | Sequence[int] = False) -> list[str]:
    """Rows as lines of aligned columns; those of `right` are set right, all but the first for
    True."""
    widths = [max(map(width, column)) for column in zip(*rows, strict=True)]
    chosen = range(1, len(widths)) if right is True else right or ()
    lines = []
    for row in rows:
        cells = [pad(cell, wide) for cell, wide in zip(row, widths, strict=True)]
        for at in chosen:
            cells[at] = cells[at].strip().rjust(len(cells[at]))
        lines.append("  ".join(cells).rstrip())
    return lines


@functools.cache
def catalogue(lang: str) -> Mapping[str, str]:
    """English template → its translation, of the house's files and of every chip's."""
    if lang == "en":
        return {}
    files = sorted((rules_root() / "common" / lang).glob("*.po"))
    files += [path for folder, _ in folders() if (path := folder / f"{lang}.po").is_file()]
    found: dict[str, str] = {}
    for path in files:
        found.update(read_catalogue(path))
    return found


def in_context(context: str, text: str) -> str:
    """The key of a text that has a translation of its own in one place, as gettext writes it."""
    return f"{context}\x04{text}"


def read_catalogue(path: Path) -> dict[str, str]:
    """The translated texts of one `.po` file. Raises `JoyError` for what gettext can't read."""
    from babel.messages.pofile import PoFileError, read_po

    try:
        with path.open("rb") as file:
            messages = [one for one in read_po(file, abort_invalid=True) if one.id and one.string]
    except (PoFileError, UnicodeDecodeError) as error:
        raise JoyError(
            f"not a gettext catalogue: {error}",
            where=str(path),
            help="`msgfmt --check` names the line",
        ) from None
    return {
        in_context(one.context, str(one.id)) if one.context else str(one.id): str(one.string)
        for one in messages
        if not one.fuzzy
    }


def restore_texts(data: Any, texts: Mapping[str, Any] | None = None) -> Any:
    """Plain data that went through JSON with its `texts`, with its composed texts back."""
    if texts is None:
        texts = data.get("texts", {}) if isinstance(data, Mapping) else {}
    if isinstance(data, str):
        found = texts.get(data)
        if found is None:
            return data
        rest = {key: one for key, one in texts.items() if key != data}
        return compose(found["template"], restore_texts(found["fields"], rest))
    if isinstance(data, Mapping):
        return {key: restore_texts(one, texts) for key, one in data.items() if key != "texts"}
    return [restore_texts(one, texts) for one in data] if isinstance(data, list) else data


_SPOKEN: ContextVar[Language | None] = ContextVar("language", default=None)


@contextmanager
def speaking(language: Language) -> Iterator[Language]:
    """Make `language` the one in which `tell` speaks, for the body."""
    token = _SPOKEN.set(language)
    try:
        yield language
    finally:
        _SPOKEN.reset(token)


def current_language() -> str:
    """The language that `tell` speaks: `en` where nobody said another."""
    found = _SPOKEN.get()
    return found.lang if found else "en"


def tell(text: str, /, **fields: object) -> str:
    """A text in the language of `speaking`; English outside of it."""
    found = _SPOKEN.get()
    if found is not None:
        return found(text, **fields)
    return Text(text, **fields) if fields else text


def tidy(text: str) -> str:
    """Text of several parts, with full-width colons behind words of a language that has them."""
    if not traits(current_language()).wide:
        return text
    return re.sub(r"([\u3400-\u9fff）」]): ", r"\1：", text).replace("： ", "：")
