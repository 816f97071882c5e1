"""Two files of predictions: what is said at which sample size, and with which oddities."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joymigrate.errors import JoyError
from joymigrate.verify.model import Outcome
from joymigrate.verify.task import TaskComparison, TaskQuestion, compare
from joymigrate.verify.task.document import document, verdict


def write(path: Path, samples: Iterable[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(s, ensure_ascii=False) + "\n" for s in samples))
    return path


def labelled(folder: Path, n: int, right: int, lost: int, gained: int) -> tuple[Path, Path]:
    """`right` of n right on the baseline; the target loses and gains some; shuffled."""
    base, target = [], []
    for i in range(n):
        ours = "yes" if i < right else "no"
        theirs = "no" if i < lost else "yes" if right <= i < right + gained else ours
        base.append({"id": str(i), "prediction": ours, "reference": "yes"})
        target.append({"id": str(i), "prediction": theirs, "reference": "yes"})
    random.Random(n).shuffle(target)
    return write(folder / "base.jsonl", base), write(folder / "target.jsonl", target)


def sides(folder: Path, *pairs: tuple[Any, Any, Any]) -> tuple[Path, Path]:
    """(baseline, target, reference) predictions as two files; reference ... for none."""
    known = [{} if r is ... else {"reference": r} for _, _, r in pairs]
    base = [{"id": i, "prediction": b, **known[i]} for i, (b, _, _) in enumerate(pairs)]
    target = [{"id": i, "prediction": t, **known[i]} for i, (_, t, _) in enumerate(pairs)]
    return write(folder / "base.jsonl", base), write(folder / "target.jsonl", target)


@pytest.mark.parametrize(
    ("n", "right", "lost", "gained", "outcome"),
    [
        (100, 91, 2, 2, Outcome.INCONCLUSIVE),  # 96 % agreement of few
        (1000, 911, 20, 20, Outcome.INCONCLUSIVE),
        (10_000, 9108, 202, 197, Outcome.PASS),  # 91.08 against 91.03
        (10_000, 9108, 10, 5, Outcome.PASS),
        (10_000, 9108, 300, 100, Outcome.FAIL),  # 2 pp worse
        (1000, 911, 60, 10, Outcome.FAIL),
        (100, 91, 5, 0, Outcome.INCONCLUSIVE),  # 5 pp worse, but by chance once in sixteen
        (100, 91, 40, 0, Outcome.FAIL),
        (10_000, 9108, 30, 400, Outcome.PASS),  # better
        (5, 5, 0, 0, Outcome.INCONCLUSIVE),  # equal, and far too few
        (1000, 911, 0, 0, Outcome.PASS),
    ],
)
def test_the_sample_size_decides_what_can_be_said(
    tmp_path: Path, n: int, right: int, lost: int, gained: int, outcome: Outcome
) -> None:
    found = compare(*labelled(tmp_path, n, right, lost, gained), TaskQuestion())
    assert found.outcome is outcome
    assert (found.judgement.lost, found.judgement.gained) == (lost, gained)


@pytest.mark.dear
def test_the_published_figures_with_intervals_and_needed_pairs(tmp_path: Path) -> None:
    found = document(compare(*labelled(tmp_path, 10_000, 9108, 202, 197), TaskQuestion()))
    task = found["task"]
    assert found["schema"] == "joymigrate.verdict/1"
    assert (found["verdict"], found["stage"], found["first_divergence"]) == ("pass", "S8", None)
    assert (task["baseline"], task["target"]) == (91.08, 91.03)
    assert task["difference_pp"] == -0.05
    assert task["interval_pp"] == pytest.approx([-0.378, 0.278], abs=0.003)
    assert task["required_n"] == pytest.approx(9868, abs=5)
    assert task["agreement"]["value"] == 96.01
    assert task["agreement"]["low"] == pytest.approx(95.61, abs=0.01)


def test_a_wider_margin_needs_fewer_pairs(tmp_path: Path) -> None:
    files = labelled(tmp_path, 1000, 911, 20, 20)
    assert compare(*files, TaskQuestion(margin=2)).outcome is Outcome.PASS


@pytest.mark.dear
def test_agreement_alone_cannot_tell_who_is_right(tmp_path: Path) -> None:
    files = sides(tmp_path, *[("a", "a" if i % 25 else "b", ...) for i in range(10_000)])
    found = compare(*files, TaskQuestion())
    assert found.metric == "agreement"
    assert found.outcome is Outcome.INCONCLUSIVE
    assert "references" in found.reasons[0]
    assert compare(*files, TaskQuestion(agreement=95)).outcome is Outcome.PASS
    assert compare(*files, TaskQuestion(agreement=97)).outcome is Outcome.FAIL


def test_the_demanded_agreement_needs_enough_pairs(tmp_path: Path) -> None:
    files = sides(tmp_path, *[("a", "a" if i % 25 else "b", ...) for i in range(100)])
    assert compare(*files, TaskQuestion(agreement=95)).outcome is Outcome.INCONCLUSIVE


def test_equal_answers_pass_without_references(tmp_path: Path) -> None:
    files = sides(tmp_path, *[("a", "a", ...)] * 2000)
    assert compare(*files, TaskQuestion()).outcome is Outcome.PASS


@pytest.mark.dear
def test_a_second_baseline_run_tells_what_noise_is(tmp_path: Path) -> None:
    base, target = sides(tmp_path, *[("a", "a" if i % 25 else "b", ...) for i in range(20_000)])
    noisy = [{"id": i, "prediction": "a" if (i + 7) % 25 else "b"} for i in range(20_000)]
    again = write(tmp_path / "again.jsonl", noisy)
    found = compare(base, target, TaskQuestion(), again)
    assert found.outcome is Outcome.PASS
    assert found.judgement.noise is not None
    assert found.judgement.noise.value == pytest.approx(0.96)
    same = write(tmp_path / "same.jsonl", [{"id": i, "prediction": "a"} for i in range(20_000)])
    assert compare(base, target, TaskQuestion(), same).outcome is Outcome.FAIL


def test_normalisers_are_named_and_both_figures_shown(tmp_path: Path) -> None:
    pairs = [("Hello, world!", "hello  world", "Hello, world!")] * 2000
    found = document(compare(*sides(tmp_path, *pairs), TaskQuestion()))
    assert found["verdict"] == "fail"
    names = ("whitespace", "punctuation", "case", "unicode")
    found = document(compare(*sides(tmp_path, *pairs), TaskQuestion(normalisers=names)))
    assert found["verdict"] == "pass"
    assert found["task"]["raw"]["target"] == 0
    assert found["task"]["normalised"]["target"] == 100
    assert found["task"]["raw"]["agreement"]["value"] == 0


def test_unicode_forms_are_one_answer_when_asked_for(tmp_path: Path) -> None:
    pairs = [("北京市 １号", "北京市 1号", "北京市 1号"), ("cafe\u0301", "café", "café")] * 1000
    files = sides(tmp_path, *pairs)
    assert compare(*files, TaskQuestion()).raw.gained == 2000
    assert compare(*files, TaskQuestion(normalisers=("unicode",))).judgement.gained == 0


def test_a_field_of_json_answers_is_compared_alone(tmp_path: Path) -> None:
    def call(tool: str, order: int) -> str:
        return json.dumps({"tool_name": tool, "arguments": {"order": order}})

    pairs = [(call("refund", i), {"tool_name": "refund", "arguments": {"order": -i}}, ...)
             for i in range(1, 2001)]  # fmt: skip
    found = document(compare(*sides(tmp_path, *pairs), TaskQuestion(fields=("tool_name",))))
    assert found["verdict"] == "pass"
    assert found["task"]["by_field"]["tool_name"]["raw"]["agreement"]["value"] == 100
    both = TaskQuestion(fields=("tool_name", "arguments.order"))
    found = document(compare(*sides(tmp_path, *pairs), both))
    assert found["verdict"] == "inconclusive"
    assert found["task"]["by_field"]["arguments.order"]["raw"]["agreement"]["value"] == 0


def test_fields_are_shown_for_json_answers_without_asking(tmp_path: Path) -> None:
    pairs = [({"tool": "a", "city": "x"}, {"tool": "a", "city": "y"}, {"tool": "a", "city": "x"})]
    found = document(compare(*sides(tmp_path, *pairs * 50), TaskQuestion()))["task"]["by_field"]
    assert found["tool"]["raw"]["agreement"]["value"] == 100
    assert (found["city"]["raw"]["baseline"], found["city"]["raw"]["target"]) == (100, 0)


def test_malformed_json_is_counted_and_wrong(tmp_path: Path) -> None:
    good = '{"tool_name": "refund"}'
    pairs = [(good, good if i % 10 else good[:-1], {"tool_name": "refund"}) for i in range(1000)]
    found = document(compare(*sides(tmp_path, *pairs), TaskQuestion(fields=("tool_name",))))
    assert found["task"]["malformed"] == {"baseline": 0, "target": 100}
    assert (found["task"]["baseline"], found["task"]["target"]) == (100, 90)
    assert found["verdict"] == "fail"


def test_a_sentence_where_a_call_was_expected_is_malformed(tmp_path: Path) -> None:
    pairs = [('{"tool_name": "a"}', "I would call a", ...)] * 10
    found = document(compare(*sides(tmp_path, *pairs), TaskQuestion(fields=("tool_name",))))
    assert found["task"]["malformed"] == {"baseline": 0, "target": 10}


def test_scores_are_compared_by_their_mean(tmp_path: Path) -> None:
    rng = random.Random(0)
    base = [{"id": i, "score": rng.random()} for i in range(4000)]
    near = [{"id": s["id"], "score": min(1, max(0, s["score"] + rng.gauss(0, 0.02)))} for s in base]
    worse = [{"id": s["id"], "score": max(0, s["score"] - 0.03)} for s in base]
    a = write(tmp_path / "a.jsonl", base)
    assert compare(a, write(tmp_path / "b.jsonl", near), TaskQuestion()).outcome is Outcome.PASS
    found = compare(a, write(tmp_path / "c.jsonl", worse), TaskQuestion())
    assert (found.metric, found.outcome) == ("score", Outcome.FAIL)
    lower = TaskQuestion(lower_is_better=True)
    assert compare(a, write(tmp_path / "c.jsonl", worse), lower).outcome is Outcome.PASS


def test_scores_that_are_no_shares_have_a_margin_in_their_unit(tmp_path: Path) -> None:
    base = [{"id": i, "score": 50 + i % 7} for i in range(500)]
    less = [{"id": i, "score": 49 + i % 7 + (i % 2) * 0.1} for i in range(500)]
    files = write(tmp_path / "a.jsonl", base), write(tmp_path / "b.jsonl", less)
    assert compare(*files, TaskQuestion(margin=0.5)).outcome is Outcome.FAIL
    found = document(compare(*files, TaskQuestion(margin=2)))
    assert (found["verdict"], found["task"]["unit"]) == ("pass", "score")


def test_f1_is_the_overlap_of_words(tmp_path: Path) -> None:
    pairs = [("the cat sat", "the cat", "the cat sat"), ("京东 物流", "京东", "京东 物流")] * 100
    found = document(compare(*sides(tmp_path, *pairs), TaskQuestion(metric="f1")))
    assert found["task"]["baseline"] == 100
    assert found["task"]["target"] == pytest.approx(100 * (0.8 + 2 / 3) / 2)
    assert found["verdict"] == "fail"


@pytest.mark.dear
def test_macro_f1_sees_a_rare_class_that_accuracy_hides(tmp_path: Path) -> None:
    rare = [("rare", "common", "rare")] * 20
    common = [("common", "common", "common")] * 9980
    files = sides(tmp_path, *rare, *common)
    assert compare(*files, TaskQuestion(metric="accuracy")).outcome is Outcome.PASS
    found = compare(*files, TaskQuestion(metric="macro-f1"))
    assert found.outcome is Outcome.FAIL
    assert found.judgement.target == pytest.approx(0.5, abs=0.01)


def test_tokens_agree_by_position(tmp_path: Path) -> None:
    base = [{"id": i, "tokens": [1, 2, 3, 4]} for i in range(50)]
    target = [{"id": i, "tokens": [1, 2, 9, 4]} for i in range(50)]
    files = write(tmp_path / "a.jsonl", base), write(tmp_path / "b.jsonl", target)
    found = document(compare(*files, TaskQuestion(agreement=90)))
    assert (found["task"]["metric"], found["task"]["agreement"]["value"]) == ("token", 75)
    assert found["task"]["common_prefix"] == 2
    assert found["verdict"] == "fail"


def test_groups_are_shown_by_task(tmp_path: Path) -> None:
    base = [{"id": i, "prediction": 1, "reference": 1, "task": "ab"[i % 2]} for i in range(100)]
    target = [{**s, "prediction": int(s["task"] == "a")} for s in base]
    files = write(tmp_path / "a.jsonl", base), write(tmp_path / "b.jsonl", target)
    found = document(compare(*files, TaskQuestion()))["task"]["by_task"]
    assert (found["a"]["target"], found["b"]["target"]) == (100, 0)


@pytest.mark.dear
def test_missing_answers_never_count_as_passed(tmp_path: Path) -> None:
    base, target = labelled(tmp_path, 10_000, 10_000, 0, 0)
    lines = target.read_text().splitlines(keepends=True)
    target.write_text("".join(lines[:9900]))  # one percent crashed: over half a point if wrong
    found = compare(base, target, TaskQuestion())
    assert found.outcome is Outcome.INCONCLUSIVE
    assert len(found.unmatched[1]) == 100
    made = verdict(found)
    assert made.covered["samples"] == {"compared": 9900, "of": 10_000}
    assert str(made.uncovered[0]["reason"]).startswith("the target has none of the ids ")
    assert str(made.uncovered[0]["reason"]).endswith(" and 80 more")
    target.write_text("".join(lines[:9000]))
    assert "only 90.0 % of the ids" in compare(base, target, TaskQuestion()).reasons[0]


def test_no_common_id_is_inconclusive(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", [{"id": "a", "prediction": 1}])
    b = write(tmp_path / "b.jsonl", [{"id": "b", "prediction": 1}])
    found = compare(a, b, TaskQuestion())
    assert found.outcome is Outcome.INCONCLUSIVE
    assert "no id in common" in found.reasons[0]


def test_wrong_on_both_sides_proves_nothing(tmp_path: Path) -> None:
    found = compare(*sides(tmp_path, *[("3", "3", 3)] * 5000), TaskQuestion())
    assert found.outcome is Outcome.INCONCLUSIVE
    assert "single right answer" in found.reasons[0]


def test_other_references_on_the_target_are_a_doubt(tmp_path: Path) -> None:
    a = [{"id": i, "prediction": 1, "reference": 1} for i in range(2000)]
    b = [{"id": i, "prediction": 1, "reference": 1 if i else 2} for i in range(2000)]
    found = compare(write(tmp_path / "a.jsonl", a), write(tmp_path / "b.jsonl", b), TaskQuestion())
    assert (found.outcome, found.differing_references) == (Outcome.INCONCLUSIVE, 1)


def test_a_repeated_id_is_an_error_unless_told_what_it_means(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", [{"id": "x", "prediction": p} for p in (1, 2)])
    b = write(tmp_path / "b.jsonl", [{"id": "x", "prediction": p} for p in (1, 3)])
    with pytest.raises(JoyError, match="'x' occurs twice") as error:
        compare(a, b, TaskQuestion())
    assert "jsonl:2" in str(error.value)
    assert compare(a, b, TaskQuestion(duplicates="first")).paired == 1
    numbered = compare(a, b, TaskQuestion(duplicates="number"))
    assert (numbered.paired, numbered.judgement.agreement.value) == (2, 0.5)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "no sample"),
        ("\n\n", "no sample"),
        ("{", "not a JSON line"),
        ("[1]", "not an object"),
        ('{"prediction": 1}', "needs an id"),
        ('{"id": true, "prediction": 1}', "needs an id"),
        ('{"id": "1", "output": 1}', "one of prediction, score, tokens"),
        ('{"id": "1", "score": NaN}', "a finite number, got nan"),
        ('{"id": "1", "score": "high"}', "a score is a number"),
    ],
)
def test_a_bad_file_is_one_clear_error(tmp_path: Path, text: str, what: str) -> None:
    good = write(tmp_path / "good.jsonl", [{"id": "1", "prediction": 1, "score": 1}])
    bad = tmp_path / "bad.jsonl"
    bad.write_text(text)
    for files in ((good, bad), (bad, good)):
        with pytest.raises(JoyError, match=what):
            compare(*files, TaskQuestion())


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    good = write(tmp_path / "good.jsonl", [{"id": "1", "prediction": 1}])
    with pytest.raises(JoyError, match="No such file"):
        compare(good, tmp_path / "absent.jsonl", TaskQuestion())


@pytest.mark.parametrize(
    "question",
    [
        TaskQuestion(metric="exat"),
        TaskQuestion(margin=-1),
        TaskQuestion(agreement=101),
        TaskQuestion(normalisers=("white",)),
        TaskQuestion(duplicates="last"),
        TaskQuestion(alpha=0),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused(tmp_path: Path, question: TaskQuestion) -> None:
    with pytest.raises(JoyError):
        compare(*sides(tmp_path, (1, 1, 1)), question)


def test_packed_files_and_byte_order_marks_are_read(tmp_path: Path) -> None:
    plain = tmp_path / "a.jsonl"
    plain.write_bytes(b'\xef\xbb\xbf{"id": 1, "prediction": "a"}\r\n')
    packed = tmp_path / "b.jsonl.gz"
    packed.write_bytes(gzip.compress(b'{"id": "1", "prediction": "a"}\n'))
    assert compare(plain, packed, TaskQuestion()).paired == 1


def test_one_is_not_true_and_nan_is_nan(tmp_path: Path) -> None:
    pairs = [(1, True, ...), (1, 1.0, ...), (None, None, ...)]
    found = compare(*sides(tmp_path, *pairs), TaskQuestion())
    assert found.judgement.agreement is not None
    assert found.judgement.agreement.value == pytest.approx(2 / 3)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60),
    st.randoms(use_true_random=False),
)
def test_order_does_not_matter(
    tmp_path_factory: pytest.TempPathFactory, answers: list[tuple[bool, bool]], rng: random.Random
) -> None:
    folder = tmp_path_factory.mktemp("order")
    base = [{"id": i, "prediction": a, "reference": True} for i, (a, _) in enumerate(answers)]
    target = [{"id": i, "prediction": b, "reference": True} for i, (_, b) in enumerate(answers)]

    def run() -> TaskComparison:
        files = write(folder / "a.jsonl", base), write(folder / "b.jsonl", target)
        return compare(*files, TaskQuestion(examples=0))

    straight = run()
    rng.shuffle(base)
    rng.shuffle(target)
    mixed = run()
    assert straight.paired == mixed.paired == len(answers)
    for name in ("outcome", "lost", "gained", "p_worse", "p_different"):
        assert getattr(straight.judgement, name) == getattr(mixed.judgement, name)
