"""The command `scan`: what it prints where, which exit code it leaves, what it refuses."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import joymigrate
from joymigrate.cli._main import run as joy_run
from tests.cli.joy import Joy, joy_with

SAMPLE = Path(__file__).parents[1] / "samples" / "trainer"
SNAPSHOTS = Path(__file__).parent / "snapshots"
UPDATE = os.environ.get("JOYMIGRATE_UPDATE_SNAPSHOTS") == "1"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the sample project, as the working folder."""
    folder = tmp_path / "trainer"
    shutil.copytree(SAMPLE, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr("joymigrate.cli.scan.now", lambda: "TODAY")
    return folder


@pytest.fixture
def joy(capsys: pytest.CaptureFixture[str]) -> Joy:
    return joy_with(capsys)


COMMANDS = {
    "text": ("scan", "."),
    "json": ("scan", ".", "--format", "json"),
    "sarif": ("scan", ".", "--format", "sarif"),
    "github": ("scan", ".", "--format", "github"),
    "md": ("scan", ".", "--format", "md"),
    "md_zh": ("scan", ".", "--format", "md", "--lang", "zh"),
    "html": ("scan", ".", "--format", "html"),
    "statistics": ("scan", ".", "--statistics"),
    "colour": ("scan", ".", "--color", "always", "-q"),
    "agnostic": ("scan", "train.py", "--style", "agnostic", "-q"),
    "nothing": ("scan", ".", "--exclude", "*"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_output_is_the_one_on_record(project: Path, joy: Joy, name: str) -> None:
    """Rewrite the records with JOYMIGRATE_UPDATE_SNAPSHOTS=1 and read their difference."""
    told = joy(*COMMANDS[name])
    shown = (
        f"$ joymigrate {' '.join(COMMANDS[name])}\n--- exit code\n{told.code}\n"
        f"--- stdout\n{told.out}--- stderr\n{told.err}"
    )
    shown = anonymous(shown, project)
    record = SNAPSHOTS / f"scan_{name}.txt"
    if UPDATE:
        record.write_bytes(shown.encode())
    assert shown == record.read_bytes().decode()


def anonymous(text: str, project: Path) -> str:
    """Without what differs between machines and releases, or belongs to the page's frame."""
    text = text.replace(project.as_posix(), "ROOT")
    text = re.sub(r"<style>.*?</style>", "<style/>", text, flags=re.DOTALL)
    text = re.sub(r"<script>.*?</script>", "<script/>", text, flags=re.DOTALL)
    text = re.sub(r"sha256-[\w+/=]+", "sha256", text)
    if "text/html" in text or "<html" in text:
        text = text.replace("><", ">\n<")
    return text.replace(joymigrate.__version__, "VERSION")


def test_scan_never_writes(project: Path, joy: Joy) -> None:
    before = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    joy("scan", ".")
    joy("scan", ".", "--format", "html")
    assert {path: path.read_bytes() for path in project.rglob("*") if path.is_file()} == before


def test_a_piped_finding_is_one_line_in_the_known_form(project: Path, joy: Joy) -> None:
    told = joy("scan", "train.py", "run.sh")
    form = re.compile(r"(?P<path>[^:]+):\d+:\d+: JM\d{3} (\[[*~]\] )?\S.*")
    assert all(form.fullmatch(line) for line in told.lines[:-1])
    assert told.lines[-1].startswith("Found ")


def test_a_path_given_twice_is_scanned_once(project: Path, joy: Joy) -> None:
    once = joy("scan", ".")
    twice = joy("scan", ".", "train.py", project, "./train.py")
    assert once.out == twice.out


def test_output_goes_to_a_file(project: Path, joy: Joy) -> None:
    told = joy("scan", ".", "--format", "json", "-o", "r.json")
    assert (told.code, told.out) == (1, "")
    assert told.err.splitlines()[-1].startswith("wrote r.json: Found ")
    assert json.loads(Path("r.json").read_text())["schema"] == "joymigrate.scan/1"
    assert [path.name for path in project.iterdir() if path.name.startswith(".r.json")] == []


def test_output_into_a_missing_folder_is_one_error(project: Path, joy: Joy) -> None:
    told = joy("scan", ".", "-o", "nowhere/r.txt")
    assert told.code == 2
    assert told.err.startswith("error: cannot write: No such file or directory\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("scan",), "no PATH to scan"),
        (("scan", "nowhere", "train.py", "gone"), "no such file or folder: nowhere, gone"),
        (("scan", ".", "--format", "jsn"), "--format does not know 'jsn'. Did you mean 'json'?"),
        (("scan", ".", "--style", "agnostc"), "Did you mean 'agnostic'?"),
        (("scan", ".", "--lang", "fr"), "--lang does not know 'fr'"),
        (("scan", ".", "--color", "yes"), "--color does not know 'yes'"),
        (("scan", ".", "--to", "asend"), "unknown chip 'asend'. Did you mean 'ascend'?"),
        (("scan", ".", "--to", "nvidia"), "'nvidia' is where the move starts"),
        (("scan", ".", "--select", "JM991"), "unknown rule 'JM991'"),
        (("scan", ".", "--baseline", "none.json"), "cannot read the baseline"),
        (("scan", ".", "--portfolio", "r.yaml"), "--portfolio and PATH don't go together"),
        (("scan", "--portfolio", "r.yaml", "--format", "sarif"), "--format does not know 'sarif'"),
        (("scan", "--portfolio", "none.yaml"), "cannot read the portfolio"),
        (("scan", ".", "--diff", "HEAD"), "--diff needs a git tree"),
        (("scan", ".", "-j", "-1"), "Invalid value for '-j'"),
        (("scan", ".", "--selct", "JM1"), "No such option: --selct"),
    ],
)
def test_a_mistake_is_one_clear_error(
    project: Path,
    joy: Joy,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(project.parent))
    told = joy(*arguments)
    assert told.code == 2
    assert told.out == ""
    assert message in told.err
    assert told.err.startswith("error: ")
    assert "Traceback" not in told.err


def test_exit_zero_hides_the_findings_from_the_exit_code(project: Path, joy: Joy) -> None:
    assert joy("scan", ".").code == 1
    assert joy("scan", ".", "--exit-zero").code == 0


def test_an_unreadable_file_is_a_finding_and_the_scan_goes_on(project: Path, joy: Joy) -> None:
    rules = {
        one["rule"] for one in json.loads(joy("scan", ".", "--format", "json").out)["findings"]
    }
    assert {"JM000", "JM101"} <= rules


def test_select_and_ignore_choose_rules(project: Path, joy: Joy) -> None:
    told = joy("scan", ".", "--select", "JM130,JM200", "--format", "json")
    assert set(json.loads(told.out)["summary"]["by_rule"]) == {"JM001", "JM130", "JM200"}
    told = joy("scan", ".", "--ignore", "JM1", "--ignore", "JM000", "--format", "json")
    assert not {"JM000", "JM101", "JM130"} & set(json.loads(told.out)["summary"]["by_rule"])


def test_settings_are_merged_and_the_command_line_wins(project: Path, joy: Joy) -> None:
    Path("joymigrate.toml").write_text('select = ["JM130"]\n[effort]\nJM130 = 30\n')
    document = json.loads(joy("scan", ".", "--format", "json").out)
    assert list(document["summary"]["by_rule"]) == ["JM001", "JM130"]  # the edit needs an import
    assert document["readiness"]["minutes"] == 30.2
    told = joy("scan", ".", "--select", "JM200", "--format", "json")
    assert list(json.loads(told.out)["summary"]["by_rule"]) == ["JM200"]


def test_a_wrong_figure_of_the_effort_model_is_one_error(project: Path, joy: Joy) -> None:
    Path("joymigrate.toml").write_text("[effort]\nunsave = 1\n")
    told = joy("scan", ".")
    assert told.code == 2
    assert "Did you mean 'unsafe'?" in told.err


def test_one_scan_writes_several_forms(project: Path, joy: Joy, tmp_path: Path) -> None:
    forms = ("sarif", "md", "csv", "json")
    alone = {form: joy("scan", ".", "--format", form, "-q").out for form in forms}
    (written := tmp_path / "written").mkdir()  # outside of what is scanned
    also = [word for form in forms for word in ("--also", str(written / f"scan.{form}"))]
    told = joy("scan", ".", "--format", "json", *also)
    assert (told.code, told.out) == (1, alone["json"])
    assert {form: (written / f"scan.{form}").read_text() for form in forms} == alone


def test_a_name_that_says_no_form_is_refused_before_the_scan(project: Path, joy: Joy) -> None:
    told = joy("scan", ".", "-o", "scan.txt", "--also", "scan.pdf")
    assert told.code == 2
    assert "--also scan.pdf: the name says no format" in told.err
    assert not Path("scan.txt").exists()


def test_a_baseline_leaves_only_new_sites(project: Path, joy: Joy) -> None:
    told = joy("scan", ".", "--write-baseline", "known.json")
    assert (told.code, told.out) == (0, "")
    assert re.fullmatch(r"wrote \d+ sites to known.json\n", told.err)
    told = joy("scan", ".", "--baseline", "known.json")
    assert told.code == 0
    assert told.out.startswith("Nothing new: ")
    source = Path("train.py").read_text()
    Path("train.py").write_text("# moved\n" + source + 'new = torch.zeros(1).to("cuda")\n')
    told = joy("scan", ".", "--baseline", "known.json", "-q")
    assert [line.split(": ")[0] for line in told.lines[:-1]] == ["train.py:24:25"]


def test_a_baseline_works_from_a_folder_above_and_reports_stale_entries(
    project: Path, joy: Joy
) -> None:
    joy("scan", ".", "--write-baseline", "known.json")
    os.chdir(project.parent)
    told = joy("scan", "trainer/train.py", "--baseline", "trainer/known.json")
    assert told.code == 0
    assert "stale" not in told.err
    Path("trainer/run.sh").write_text("true\n")
    told = joy("scan", "trainer", "--baseline", "trainer/known.json")
    assert "run.sh: warning: stale baseline entry: JM170" in told.err


def test_a_baseline_in_the_settings_counts_from_their_folder(project: Path, joy: Joy) -> None:
    joy("scan", ".", "--write-baseline", "known.json")
    Path("joymigrate.toml").write_text('baseline = "known.json"\n')
    os.chdir(project.parent)
    assert joy("scan", "trainer").code == 0


def git(*arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *arguments], check=True, capture_output=True)


def test_diff_reports_only_lines_that_are_new(project: Path, joy: Joy) -> None:
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    told = joy("scan", ".", "--diff", "HEAD")
    assert told.code == 0
    assert told.out.startswith("Nothing to do: no site on lines new since HEAD")
    with Path("train.py").open("a") as file:
        file.write('new = torch.zeros(1).to("cuda")\n')
    Path("more.sh").write_text("CUDA_VISIBLE_DEVICES=1 true\n")
    told = joy("scan", ".", "--diff", "HEAD", "-q")
    assert told.code == 1
    assert [line.split(": ")[0] for line in told.lines[:-1]] == ["more.sh:1:1", "train.py:23:25"]
    told = joy("scan", ".", "--diff", "nowhere")
    assert (told.code, told.out) == (2, "")
    assert "git knows no revision 'nowhere'" in told.err


@pytest.mark.parametrize("format", ["text", "json", "md", "html"])
def test_a_portfolio_ranks_repositories(project: Path, joy: Joy, format: str) -> None:
    Path("other").mkdir()
    Path("other/a.sh").write_text("CUDA_VISIBLE_DEVICES=1 true\n")
    Path("repos.yaml").write_text("- {path: ., name: trainer}\n- {path: other, to: musa}\n")
    told = joy("scan", "--portfolio", "repos.yaml", "--format", format)
    assert told.code == 1
    assert told.out.index("other") < told.out.index("trainer")
    if format == "json":
        chips = {one["name"]: one["to"] for one in json.loads(told.out)["repositories"]}
        assert chips == {"trainer": "ascend", "other": "musa"}
    assert joy("scan", "--portfolio", "repos.yaml", "--exit-zero").code == 0


def test_kept_mentions_are_listed_on_request(project: Path, joy: Joy) -> None:
    told = joy("scan", "train.py", "--show-kept")
    assert any(re.match(r"train\.py:1:\d+: kept \(", line) for line in told.lines)
    assert "kept (" not in joy("scan", "train.py").out


def test_quiet_says_nothing_beside_the_findings(project: Path, joy: Joy) -> None:
    told = joy("scan", ".", "-q")
    assert told.err == ""
    assert told.out


def test_a_pipe_that_closes_early_is_no_error(project: Path) -> None:
    command = f"{sys.executable} -m joymigrate scan . --format json | head -c 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, check=False
    )
    assert b"Traceback" not in done.stderr
    assert b"BrokenPipe" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_a_terminal_gets_excerpts_colour_and_progress(project: Path) -> None:
    shown = on_a_terminal("scan", "train.py")
    assert "\x1b[1mtrain.py" in shown
    assert "scanning 1/1" in shown
    plain = re.sub(r"\x1b\[[0-9;]*[mK]", "", shown).replace("\r", "")
    assert (
        '11 |     dist.init_process_group("nccl")\n   |                             ^^^^^^' in plain
    )
    assert 'help: write `"hccl"`' in plain
    assert plain.rstrip().splitlines()[-1].startswith("Found ")
    assert "Readiness for ascend" in plain
    assert "\x1b[1m" not in on_a_terminal("scan", "train.py", "--color", "never")


def on_a_terminal(*arguments: str) -> str:
    """What a command shows on a pseudo-terminal."""
    import pty

    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "joymigrate", *arguments]
    environment = {**os.environ, "TERM": "xterm"}
    done = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    pieces = []
    try:
        while piece := os.read(ours, 65536):
            pieces.append(piece)
    except OSError:  # Linux says so when the other end is closed
        pass
    done.wait()
    os.close(ours)
    return b"".join(pieces).decode()


@pytest.mark.skipif(sys.platform != "linux", reason="needs file names that are not UTF-8")
@pytest.mark.parametrize("format", ["text", "json", "sarif", "github", "md", "html"])
def test_a_name_that_is_not_utf8_passes_every_format(
    project: Path, capfdbinary: pytest.CaptureFixture[bytes], format: str
) -> None:
    with open(os.fsencode(project) + b"/\xff.py", "wb") as file:
        file.write(b"import torch\nx = torch.zeros(1).to('cuda')\n")
    assert joy_run(["scan", ".", "--format", format]) == 1
    shown = capfdbinary.readouterr().out
    assert b"%FF.py" in shown if format == "sarif" else b"\\udcff.py" in shown
    if format in ("json", "sarif"):
        json.loads(shown)


def test_no_color_wins_over_force_color(monkeypatch: pytest.MonkeyPatch) -> None:
    from joymigrate.cli._color import use_color

    monkeypatch.setenv("FORCE_COLOR", "1")
    assert use_color(sys.stdout)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not use_color(sys.stdout)


@pytest.mark.parametrize("before", ["FORCE_COLOR", "NO_COLOR", None])
def test_color_decides_for_one_command_line(
    project: Path, joy: Joy, monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    if before:
        monkeypatch.setenv(before, "1")
    as_before = joy("scan", "train.py").out
    assert "\033[" in joy("scan", "train.py", "--color", "always").out
    assert "\033[" not in joy("scan", "train.py", "--color", "never").out
    assert joy("scan", "train.py").out == as_before
    told = joy("status", "--color", "alway")
    assert (told.code, "Did you mean 'always'?" in told.err) == (2, True)
