"""The live page: what a project's ledger, its journey and its training runs say, as they grow.

`look` reads, `parts` renders, `Feed` notices changes, `serve` shows them. Nothing here writes.
"""

from joymigrate.report.live.feed import Feed
from joymigrate.report.live.look import LiveProject, ProjectView
from joymigrate.report.live.parts import page, parts
from joymigrate.report.live.server import Live, serve

__all__ = ["Feed", "Live", "LiveProject", "ProjectView", "page", "parts", "serve"]
