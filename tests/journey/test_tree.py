"""What changed in a project between two calls, and by whom."""

from __future__ import annotations

from pathlib import Path

from joymigrate.journey.tree import find_changes, find_written, snapshot, total


def test_code_and_settings_count_and_outputs_and_environments_do_not(tmp_path: Path) -> None:
    for name in ("a.py", "b.yaml", "out/c.json", ".venv/d.py", "e.bin", ".joymigrate/f.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert list(snapshot(tmp_path)) == ["a.py", "b.yaml"]


def test_a_file_that_a_run_left_behind_is_not_the_users_edit() -> None:
    before = {"a.py": "1", "config.json": "1"}
    assert find_changes(before, {**before, "results.json": "2", "log.txt": "3"}, ()) == []
    assert find_changes(before, {**before, "config.json": "2"}, ()) == ["config.json"]
    assert find_changes(before, {**before, "config.json": "2"}, {"config.json"}) == []
    assert find_changes(before, {**before, "new.py": "2"}, ()) == ["new.py"]
    assert find_changes(before, {"config.json": "1"}, ()) == ["a.py"]


def test_code_that_changes_during_a_run_is_never_its_output() -> None:
    assert find_written({"a.py": "1"}, {"a.py": "2", "r.json": "1"}) == {"r.json"}


def test_the_hash_knows_names_and_content() -> None:
    hashes = {total(files) for files in ({}, {"a": "1"}, {"b": "1"}, {"a": "2"})}
    assert len(hashes) == 4
    assert total({"a": "1", "b": "2"}) == total({"b": "2", "a": "1"})


def test_the_trace_of_the_first_process_stands_for_all(tmp_path: Path) -> None:
    from joymigrate.journey.steps.coverage import of_first_rank

    for rank in (0, 1):
        (tmp_path / f"trace.rank-{rank}.jsonl.gz").write_text(str(rank))
    of_first_rank(tmp_path / "trace.jsonl.gz")
    assert [path.name for path in tmp_path.iterdir()] == ["trace.jsonl.gz"]
    assert (tmp_path / "trace.jsonl.gz").read_text() == "0"
