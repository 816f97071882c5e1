"""Notices that a project changed, and wakes those who wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from joymigrate.language import Language, speaking
from joymigrate.report.live.look import ProjectView
from joymigrate.report.live.parts import parts

LOOK_S = 0.4  # between two looks at the files


class Feed:
    """The newest state of a project with its number; one thread looks, many wait."""

    def __init__(self, look: Callable[[], ProjectView]) -> None:
        self.look = look
        self.version = 1
        self.seen = look()
        self.closed = False
        self.changed = threading.Condition()
        self.stop = threading.Event()
        self.made: dict[tuple[int, str], dict[str, str]] = {}

    def start(self) -> None:
        """Look again and again, until closed."""
        threading.Thread(target=self.run, name="joymigrate-live", daemon=True).start()

    def run(self) -> None:
        """The looking thread."""
        while not self.stop.wait(LOOK_S):
            self.refresh()

    def refresh(self) -> None:
        """Look once; another state gets the next number."""
        try:
            seen = self.look()
        except OSError:  # a file went away between its listing and its reading
            return
        if seen == self.seen:
            return
        with self.changed:
            self.seen, self.version = seen, self.version + 1
            self.changed.notify_all()

    def wait(self, version: int, seconds: float) -> int:
        """The newest number, after a change from `version` or after so many seconds."""
        with self.changed:
            self.changed.wait_for(lambda: self.closed or self.version != version, seconds)
            return self.version

    def parts(self, lang: str) -> tuple[int, dict[str, str]]:
        """The newest number with the page's parts; made once for all who ask."""
        with self.changed:
            version, seen = self.version, self.seen
            key = (version, lang)
            if key not in self.made:
                self.made = {k: v for k, v in self.made.items() if k[0] == version}
                with speaking(Language(lang)):
                    self.made[key] = parts(seen)
            return version, self.made[key]

    def close(self) -> None:
        """Let everybody go home."""
        self.stop.set()
        with self.changed:
            self.closed = True
            self.changed.notify_all()
