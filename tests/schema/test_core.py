"""The reader of documents and its JSON Schema: one error per mistake, and both say the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

from joymigrate.errors import JoyError
from joymigrate.model import Tier
from joymigrate.schema import (
    DocumentKind,
    json_schema,
    mistakes,
    read,
    read_file,
    read_yaml,
    setting,
)
from joymigrate.schema.source import DocumentSource


@dataclass(frozen=True, slots=True)
class Wheel:
    """One wheel."""

    SHORT = "name"

    name: str = setting(help="its name", words=True)
    size: float = setting(1.0, "in inches", above=0, most=40)


@dataclass(frozen=True, slots=True)
class Cart:
    """A cart, as a sample of everything that a field can be."""

    title: str = setting(help="what it is called", pattern="[a-z]+")
    wheels: tuple[Wheel, ...] = setting((), "its wheels", single=True)
    count: int = setting(1, "how many carts", least=1)
    cards: int | tuple[int, ...] = setting(0, "a number, or ids")
    tier: Tier = setting(Tier.REPORT, "how sure")
    load: Mapping[str, float] = setting(make=dict, help="weight by item", least=0)
    slots: Mapping[int, str] = setting(make=dict, help="what lies where")
    mode: Literal["push", "pull"] | None = setting(None, "how it moves")
    motor: bool = setting(False, "whether it has one")
    path: str = setting(".", hidden=True)

    def __post_init__(self) -> None:
        if self.motor and self.mode == "push":
            raise JoyError("a cart with a motor is not pushed", where="mode")


CART = DocumentKind("cart", "A cart.", Cart)
GOOD: list[dict[str, Any]] = [
    {"title": "a"},
    {"title": "a", "wheels": "left"},
    {"title": "a", "wheels": {"name": 3, "size": 2}},
    {"title": "a", "wheels": ["left", {"name": "right", "size": 0.5}]},
    {"title": "a", "cards": [1, 2], "tier": "safe", "mode": "pull", "motor": True},
    {"title": "a", "load": {"b": 0, "c": 1.5}, "slots": {1: "x"}, "count": None},
    {"schema": "joymigrate.cart/1", "title": "a"},
]
BAD: list[tuple[dict[str, Any], str, str]] = [
    ({}, "'title' is missing", ""),
    ({"title": 3}, "'title' takes a text, got 3", "title"),
    ({"title": "A b"}, "'title' is 'A b', which does not match [a-z]+", "title"),
    ({"title": "a", "tilte": 1}, "unknown key 'tilte'. Did you mean 'title'?", "tilte"),
    ({"title": "a", "path": "x"}, "unknown key 'path'", "path"),
    ({"title": "a", "wheels": [{"nane": "x"}]}, "unknown key 'nane'", "wheels[0].nane"),
    ({"title": "a", "wheels": [{"name": "x", "size": 0}]}, "'size' is 0, it must be above 0",
     "wheels[0].size"),
    ({"title": "a", "wheels": {"name": "x", "size": 41}}, "'size' is 41, the most is 40",
     "wheels.size"),
    ({"title": "a", "count": 0}, "'count' is 0, the least is 1", "count"),
    ({"title": "a", "count": True}, "'count' takes a whole number, got True", "count"),
    ({"title": "a", "count": 1.5}, "'count' takes a whole number, got 1.5", "count"),
    ({"title": "a", "cards": ["x"]}, "'cards[0]' takes a whole number, got 'x'", "cards[0]"),
    ({"title": "a", "tier": "save"}, "'tier' does not know 'save'. Did you mean 'safe'?", "tier"),
    ({"title": "a", "load": {"b": -1}}, "'b' is -1, the least is 0", "load.b"),
    ({"title": "a", "load": [1]}, "'load' takes keys with values, got [1]", "load"),
    ({"title": "a", "slots": {"x": "y"}}, "'x' is not a whole number", "slots.x"),
    ({"title": "a", "mode": "fly"}, "'mode' does not know 'fly'", "mode"),
    ({"title": "a", "motor": "yes"}, "'motor' takes true or false, got 'yes'", "motor"),
    ({"schema": "joymigrate.car/1", "title": "a"}, "", ""),
]  # fmt: skip


def plain(data: Any) -> Any:
    """Data as JSON has it: keys are texts."""
    if isinstance(data, dict):
        return {str(key): plain(item) for key, item in data.items()}
    return [plain(item) for item in data] if isinstance(data, list) else data


@pytest.mark.parametrize("data", GOOD, ids=str)
def test_what_is_read_the_schema_accepts(data: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    known = {key: value for key, value in data.items() if key != "schema"}
    assert read(Cart, known).title == "a"
    jsonschema.Draft202012Validator(json_schema(CART)).validate(plain(data))


@pytest.mark.parametrize(("data", "what", "key"), BAD, ids=str)
def test_what_is_refused_the_schema_refuses(data: dict[str, Any], what: str, key: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    with pytest.raises(JoyError) as caught:
        read(Cart, data, "cart.yaml")
    assert what in caught.value.what
    assert caught.value.where == f"cart.yaml {key}".strip() or not what
    assert not jsonschema.Draft202012Validator(json_schema(CART)).is_valid(plain(data))


def test_the_schema_is_valid_2020_12() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json_schema(CART)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(schema)


def test_what_a_class_itself_refuses_has_its_place_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "cart.yaml"
    path.write_text("title: a\nmotor: true\nmode: push\n")
    with pytest.raises(JoyError, match="not pushed") as caught:
        read_file(Cart, path)
    assert caught.value.where == f"{path}:3 mode"


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.yaml", "title: a\nwheels:\n  - left\n  - {name: b,\n     size: x}\n", 5),
        ("a.json", '{"title": "a",\n "wheels": ["l",\n  {"name": "b",\n   "size": "x"}]}', 4),
        ("a.toml", 'title = "a"\n\n[[wheels]]\nname = "l"\nsize = "x"\n', 5),
    ],
)
def test_a_mistake_names_its_line(tmp_path: Path, name: str, text: str, line: int) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(JoyError, match="'size' takes a number, got 'x'") as caught:
        read_file(Cart, path)
    assert (caught.value.where or "").startswith(f"{path}:{line} wheels[")


def test_all_mistakes_are_found_in_one_go() -> None:
    text = "title: A\ncout: 1\nwheels: [{size: 0}, {name: x, size: y}]\n"
    found = mistakes(Cart, yaml.safe_load(text), DocumentSource("c", text))
    assert [(error.what.split(".")[0], error.where) for error in found] == [
        ("'title' is 'A', which does not match [a-z]+", "c:1 title"),
        ("unknown key 'cout'", "c:2 cout"),
        ("'size' is 0, it must be above 0", "c:3 wheels[0].size"),
        ("'name' is missing", "c:3 wheels[0]"),
        ("'size' takes a number, got 'y'", "c:3 wheels[1].size"),
    ]


def test_a_key_that_stands_twice_is_no_valid_yaml(tmp_path: Path) -> None:
    path = tmp_path / "twice.yaml"
    path.write_text("a: 1\nb:\n  c: 1\n  c: 2\n")
    with pytest.raises(JoyError, match="the key 'c' stands twice") as caught:
        read_yaml(path)
    assert caught.value.where == f"{path}:4:3"


def test_dates_stay_texts_and_merges_are_no_repetition(tmp_path: Path) -> None:
    path = tmp_path / "dates.yaml"
    path.write_text("a: &x {b: 2026-01-02}\nc: {<<: *x, b: 3}\n")
    assert read_yaml(path) == {"a": {"b": "2026-01-02"}, "c": {"b": 3}}
