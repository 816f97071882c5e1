"""placeholder"""

from __future__ import annotations

from typing import Any


class Generation:
    def __init__(self, x: Any) -> None: ...
    def text(self) -> list[str]:
        return []

    def markdown(self) -> list[str]:
        return []

    def sections(self) -> list[Any]:
        return []
