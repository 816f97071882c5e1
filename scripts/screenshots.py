"""Make the pictures of the README and the documentation.

    python -m scripts.screenshots [--only NAME…] [--out docs/images]

Migrates a copy of `examples/gpt` on the simulated chip and looks at what comes of it: the terminal,
the findings, the live page while the journey runs, its report in both languages. Needs Chromium, a
C compiler and the chip's package; takes a minute of processor time. Prints the pictures' Markdown.
Times and durations differ from run to run; everything else is the same.
"""

from __future__ import annotations

import argparse
import html
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from scripts.browser import Browser

REPOSITORY = Path(__file__).parents[1]
EXAMPLE = "gpt"
OPTIONS = "--steps 12 --batch-size 4 --layers 2 --width 32 --log-every 1 --eval-sums 2"
ENTRY = f"python train.py --no-amp {OPTIONS}"
BASELINE = f"python train.py --device cpu --no-amp {OPTIONS}"
WIDTH = 1200
LARGEST = 300_000  # bytes of one picture
COLOURS = 255
STEP_S = 900.0  # the journey up to its training, on a busy machine

ALT = {
    "terminal": "Terminal: joymigrate migrate takes a GPT from CUDA to Ascend, a line per step",
    "scan": "The page of a scan: sites by area, by tier, and the change proposed for each",
    "live": "The live page while a journey runs: steps done, the one that runs, losses growing",
    "report": "The report of a journey: its steps, their verdicts, plots, links to the evidence",
    "report-zh": "迁移报告：各步骤、结论、图表与证据链接",
}


def main() -> int:
    """Take the pictures that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=REPOSITORY / "docs" / "images")
    parser.add_argument("--only", nargs="+", choices=sorted(ALT), default=sorted(ALT))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / EXAMPLE
        left = shutil.ignore_patterns("out", "__pycache__", ".joymigrate")
        shutil.copytree(REPOSITORY / "examples" / EXAMPLE, project, ignore=left)
        (project / "joymigrate.toml").touch()
        with Browser(WIDTH, 850) as browser:
            for name, picture in pictures(project, browser).items():
                if name in arguments.only:
                    target = arguments.out / f"{name}.png"
                    target.write_bytes(smaller(picture))
                    print(f"![{ALT[name]}]({os.path.relpath(target, REPOSITORY)})")
    return 0


def pictures(project: Path, browser: Browser) -> dict[str, bytes]:
    """Every picture as PNG, in the order in which things happen."""
    scan = project.parent / "scan.html"
    joymigrate(project, "scan", ".", "--format", "html", "-o", str(scan), "--exit-zero")
    browser.open(f"{scan.as_uri()}?theme=light")
    found = {"scan": browser.picture(height=1000)}
    transcript, found["live"] = journey(project, browser)
    page = project.parent / "terminal.html"
    page.write_text(terminal(transcript), encoding="utf-8")
    browser.open(page.as_uri())
    height = int(browser.ask("Math.ceil(document.body.getBoundingClientRect().height)"))
    found["terminal"] = browser.picture(height=height)
    for name, lang in (("report", "en"), ("report-zh", "zh")):
        report = project.parent / f"{name}.html"
        joymigrate(project, "report", ".", "--lang", lang, "-o", str(report))
        browser.open(f"{report.as_uri()}?theme=light")
        found[name] = browser.picture(height=1300)
    return found


def journey(project: Path, browser: Browser) -> tuple[str, bytes]:
    """Migrate while the live page looks on; what the terminal showed, and the page in between."""
    command = ["migrate", ".", "-q", "--entry", ENTRY, "--baseline-entry", BASELINE]
    server = start(project, "report", "--serve", ".", "--port", "0")
    assert server.stdout is not None
    try:
        address = re.search(r"http://\S+", server.stdout.readline())
        if address is None:
            raise SystemExit("the live page did not start")
        browser.open(f"{address[0]}?theme=light")
        travel = start(project, *command)
        running = "[data-step=train][data-status=running]"
        over = "document.querySelector('.outcome') !== null"
        browser.until(f"document.querySelector('{running}') !== null || {over}", STEP_S)
        drawn = "document.querySelectorAll('#training polyline').length >= 2"
        browser.until(f"{drawn} || {over}", STEP_S)
        # The folder is of this machine; the reader's has another name.
        browser.ask("document.querySelector('header p').textContent = '~/gpt'; scrollTo(0, 0)")
        live = browser.picture(height=1150)
        shown, _ = travel.communicate()
    finally:
        server.terminate()
        server.communicate()
    if travel.returncode:
        raise SystemExit(f"the journey ended with {travel.returncode}:\n{shown}")
    typed = (
        f'$ joymigrate migrate . \\\n    --entry "{ENTRY}" \\\n    --baseline-entry "{BASELINE}"\n'
    )
    return typed + shown.replace(str(project.parent), "~"), live


def start(project: Path, *words: str) -> subprocess.Popen[str]:
    """joymigrate in the project, with both its outputs in one stream."""
    return subprocess.Popen(
        [sys.executable, "-m", "joymigrate", *words],
        cwd=project,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(),
    )


def joymigrate(project: Path, *words: str) -> None:
    """A command that must end well."""
    done = start(project, *words)
    shown, _ = done.communicate()
    if done.returncode:
        raise SystemExit(f"joymigrate {words[0]} ended with {done.returncode}:\n{shown}")


def environment() -> dict[str, str]:
    """Without settings of whoever runs this."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("JOYMIGRATE_")}
    beside = str(Path(sys.executable).parent)
    return {
        **kept,
        "PATH": f"{beside}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(REPOSITORY), kept.get("PYTHONPATH")))),
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "COLUMNS": "100",
    }


MARKS = {
    r"^(\$ )(.*\n.*\n.*)$": r'<b class="soft">\1</b><b>\2</b>',
    r"^(  ok  )": r'<span class="good">\1</span>',
    r"^(  (?:FAIL|STOP))": r'<span class="bad">\1</span>',
}


def terminal(text: str) -> str:
    """What a terminal showed, as a page."""
    shown = html.escape(text.rstrip())
    for pattern, made in MARKS.items():
        shown = re.sub(pattern, made, shown, flags=re.MULTILINE)
    return f"""<!doctype html><meta charset="utf-8"><style>
body {{ margin: 0; background: #12161a; color: #e4e9ee; padding: 20px 26px 24px;
  box-sizing: border-box; width: {WIDTH}px; }}
.bar {{ display: flex; gap: 8px; padding-bottom: 16px; }}
.bar i {{ width: 12px; height: 12px; border-radius: 50%; background: #333d47; }}
pre {{ margin: 0; font: 14px/1.5 "DejaVu Sans Mono", Menlo, Consolas, monospace;
  white-space: pre-wrap; overflow-wrap: anywhere; }}
.good {{ color: #58d3b0; }} .bad {{ color: #e49bd0; }} .soft {{ color: #7ab8ff; }}
</style><div class="bar"><i></i><i></i><i></i></div><pre>{shown}</pre>"""


def smaller(picture: bytes) -> bytes:
    """The picture with a palette: a page has few colours, and a repository keeps every version."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    made = io.BytesIO()
    reduced = image.quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    reduced.save(made, "png", optimize=True)
    if len(made.getvalue()) > LARGEST:
        raise SystemExit(f"a picture of {len(made.getvalue()):,} bytes; at most {LARGEST:,}")
    return made.getvalue()


if __name__ == "__main__":
    raise SystemExit(main())
