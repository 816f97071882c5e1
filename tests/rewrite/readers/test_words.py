"""Shell text is taken apart into commands, words and expansions with their places."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from joymigrate.rewrite.readers import _commands, _words


def commands(text: str) -> list[list[str]]:
    return [[word.value for word in each.words] for each in _commands.read(text).commands]


def test_words_lose_their_quotes_and_keep_their_places() -> None:
    text = """python 'a b'"c $X"d\\ e"""
    word = _commands.read(text).commands[0].words[1]
    assert word.value == "a bc \0d e"
    assert [text[place] for place in word.at] == list("a bc $d e")


def test_operators_end_commands_and_keywords_are_dropped() -> None:
    text = "if a; then b && c | d & fi\nwhile e; do f; done"
    assert commands(text) == [["a"], ["b"], ["c"], ["d"], ["e"], ["f"]]


def test_a_comment_begins_only_at_the_beginning_of_a_word() -> None:
    script = _commands.read("a b#c # d\n#e")
    assert [word.value for word in script.commands[0].words] == ["a", "b#c"]
    assert len(script.comments) == 2


def test_commands_inside_substitutions_are_found() -> None:
    text = 'x=$(nvidia-smi -L | wc -l) y="`nvcc --version`" <(cmp a)'
    assert ["nvidia-smi", "-L"] in commands(text)
    assert ["nvcc", "--version"] in commands(text)
    assert ["cmp", "a"] in commands(text)
    assert all(each.nested for each in _commands.read(text).commands[:2])


def test_expansions_have_names_operators_and_defaults() -> None:
    script = _commands.read("echo ${A:-x} ${#B} ${C//a/b} $D ${!E} ${F[0]}")
    assert [(each.name, each.operator) for each in script.expansions] == [
        ("A", ":-"),
        ("B", "#"),
        ("C", "//"),
        ("D", ""),
        ("E", "!"),
        ("F", "[0]"),
    ]
    assert script.expansions[0].default is not None
    assert script.expansions[0].default.value == "x"


def test_nothing_is_expanded_in_single_quotes() -> None:
    assert _commands.read("echo '$A'").expansions == []


def test_a_heredoc_is_no_command_and_expands_unless_its_word_is_quoted() -> None:
    plain = _commands.read("cat <<E\ncuda $A\nE\necho b\n")
    assert [[w.value for w in c.words] for c in plain.commands] == [["cat"], ["echo", "b"]]
    assert [each.name for each in plain.expansions] == ["A"]
    assert _commands.read("cat <<'E'\ncuda $A\nE\n").expansions == []
    tabs = _commands.read("cat <<-E\n\tx\n\tE\necho b\n")
    assert [word.value for word in tabs.commands[1].words] == ["echo", "b"]


def test_an_array_is_a_command_of_its_own() -> None:
    script = _commands.read("A=(--device cuda # x\n  --b c)\n")
    assert script.commands[0].kind == "array"
    assert [word.value for word in script.commands[0].words] == ["--device", "cuda", "--b", "c"]


def test_case_patterns_carry_their_subject() -> None:
    text = 'case "$D" in\n cuda|gpu) a ;;\n (cpu) b ;;\nesac\nc'
    script = _commands.read(text)
    arms = [c for c in script.commands if c.kind == "pattern"]
    assert [[w.value for w in arm.words] for arm in arms] == [["\0", "cuda", "gpu"], ["\0", "cpu"]]
    assert [w.value for w in script.commands[-1].words] == ["c"]


def test_a_continued_line_is_one_command() -> None:
    assert commands("a \\\n  b \\\r\n  c") == [["a", "b", "c"]]


def test_a_quote_that_never_closes_is_noted() -> None:
    assert _commands.read("echo 'a\nb").broken == 5
    assert _commands.read('x="$(a').broken is not None
    assert _commands.read("echo 'a'").broken is None


PIECES = st.sampled_from(
    [
        *("a", " ", "\n", "'", '"', "$A", "${B:-c}", "$(", ")", "`", "\\", "#", ";", "|", "<<E"),
        *("E", "case $x in", "esac", "((", "))", "=(", "中", "{", "}", "[[", "]]", "&&", ">", "<"),
        "\r\n",
    ]
)


@given(st.lists(PIECES, max_size=30).map("".join))
def test_any_text_is_read_and_every_place_lies_inside_it(text: str) -> None:
    script = _commands.read(text)
    for command in script.commands:
        for word in command.words:
            assert len(word.at) == len(word.value)
            assert all(0 <= place <= len(text) for place in word.at)
            assert all(
                char in (text[place], _words.EXPANDED)
                for char, place in zip(word.value, word.at, strict=True)
                if place < len(text)
            )
    for each in script.expansions:
        assert text[each.start : each.end] == each.name
