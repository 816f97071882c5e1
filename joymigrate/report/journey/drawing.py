"""matplotlib's drawings as parts of a page: inline SVG in the page's colours, font and language.

Text stays text. matplotlib has no glyphs for Chinese, so such text is laid out as a stand-in of the
same width, and put back afterwards. Colours are stand-ins, too: the page's style sheet decides
them, for light, dark and print.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

from joymigrate.report.html.page import Html, escape

WIDTH, HEIGHT = 420, 250  # CSS pixels, which matplotlib calls points
TONES = ("text", "soft", "line", "ground", "link", "safe-fill", "unsafe-fill", "report-fill",
         "plain-fill")  # fmt: skip
COLOUR = {tone: f"#0107{index:02x}" for index, tone in enumerate(TONES)}


class Texts:
    """Stands in for text that matplotlib can't measure, and puts it back."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        """The text itself, or something of the same width."""
        if text.isascii():
            return text
        width = sum(1 if ord(c) > 0x2E7F else 0.6 for c in text)
        token = f"Q{len(self.kept)}Q".ljust(max(3, round(width)), "m")
        self.kept[token] = text
        return token

    def restore(self, svg: str) -> str:
        """Every text where its stand-in is."""
        for token in sorted(self.kept, key=len, reverse=True):
            svg = svg.replace(f">{token}<", f">{escape(self.kept[token])}<")
        return svg


def draw(make: Callable[[Any, Texts], None], name: str, label: str, height: int = HEIGHT) -> Html:
    """The picture that `make(figure, texts)` draws; `name` is unique in its page, `label` says
    what it shows to those who don't see it."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    texts = Texts()
    settings: Any = style(name)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # whatever the user's matplotlibrc says
        matplotlib.rcParams.update(settings)
        figure = Figure(figsize=(WIDTH / 72, height / 72), layout="constrained")
        figure.patch.set_alpha(0)
        FigureCanvasSVG(figure)
        make(figure, texts)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return themed(texts.restore(buffer.getvalue()), name, label, height)


def style(name: str) -> dict[str, Any]:
    """matplotlib's settings for every plot."""
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "text.parse_math": False,
        "axes.unicode_minus": False,
        "font.size": 12,
        "text.color": COLOUR["text"],
        "axes.edgecolor": COLOUR["line"],
        "axes.labelcolor": COLOUR["soft"],
        "xtick.color": COLOUR["soft"],
        "ytick.color": COLOUR["soft"],
        "grid.color": COLOUR["line"],
        "grid.linewidth": 0.8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.formatter.useoffset": False,
        "figure.constrained_layout.w_pad": 0.03,
        "figure.constrained_layout.h_pad": 0.03,
    }


def themed(svg: str, name: str, label: str, height: int) -> Html:
    """matplotlib's document as a part of a page: no head, own ids, the page's colours and font."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<style type="text/css">.*?</style>', "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]+"', "<g", svg)
    svg = re.sub(r' transform="rotate\(-?0 [^)]*\)"', "", svg)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'(xlink:)?href="#([^"]+)"', rf'href="#{name}-\2"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    svg = re.sub(r"font: (?:[\w.]+ )*?([\d.]+px)[^;\"]*", r"font-size: \1", svg)
    svg = re.sub(r" font-family: [^;\"]*;?", "", svg)
    for tone, colour in COLOUR.items():
        svg = svg.replace(colour, f"var(--{tone})")
    head = (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(label)}">'
    )
    body = svg[svg.index(">") + 1 :]
    body = re.sub(r"\s*\n\s*", "\n", body)
    body = re.sub(r"stroke-linejoin: miter;?|; stroke-linejoin: miter", "", body)
    return Html(f"{head}{body}")
