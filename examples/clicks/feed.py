"""Clicks into a Redis stream, as a shop's front end would send them.

python feed.py redis://localhost:6379/0 --clicks 4000
"""

from __future__ import annotations

import argparse
import random

import redis
from train import ITEMS, STREAM, USERS


def main() -> None:
    """Send."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--clicks", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=2)
    options = parser.parse_args()
    draw, server = random.Random(options.seed), redis.Redis.from_url(options.url)
    for start in range(0, options.clicks, 1000):
        pipe = server.pipeline()
        for _ in range(min(1000, options.clicks - start)):
            user, item = int(draw.random() ** 8 * USERS), draw.randrange(ITEMS)
            clicked = int(item % 3 == 0 or (item % 5 == 0 and user % 2 == 0))
            pipe.xadd(STREAM, {"user": user, "item": item, "click": clicked})
        pipe.execute()
    print(f"{options.clicks} clicks sent")


if __name__ == "__main__":
    main()
