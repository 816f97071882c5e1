"""Writes dates.jsonl: 4,000 written dates with what they are in ISO form, to fine-tune on."""

from __future__ import annotations

import json
import random
from datetime import date, timedelta
from pathlib import Path

FIRST = date(1990, 1, 1)
DAYS = 365 * 40
FORMS = ("%d %B %Y", "%B %d, %Y", "%d.%m.%Y", "%a %d %b %Y", "%Y/%m/%d")


def record(draw: random.Random) -> dict[str, list[dict[str, str]]]:
    """One question with its answer."""
    day = FIRST + timedelta(days=draw.randrange(DAYS))
    return {
        "messages": [
            {"role": "user", "content": day.strftime(draw.choice(FORMS))},
            {"role": "assistant", "content": day.isoformat()},
        ]
    }


def main() -> None:
    """Write the file beside this one; always the same lines."""
    draw = random.Random(0)
    lines = (json.dumps(record(draw)) for _ in range(4000))
    path = Path(__file__).with_name("dates.jsonl")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
