"""Pictures of waves: images.py FOLDER COUNT SIZE [MASKS], and masks of their bright part."""

import sys
from pathlib import Path

import numpy as np
from PIL import Image


def main(folder: str, count: str, size: str, masks: str = "") -> None:
    """Write COUNT square pictures of SIZE pixels, and a mask of each where a folder is named."""
    root, side = Path(folder), int(size)
    root.mkdir(parents=True, exist_ok=True)
    y, x = np.mgrid[:side, :side]
    for number in range(int(count)):
        wave = np.sin(x / 9 + number) + np.cos(y / 7 - number)
        pixels = np.stack([128 + 60 * wave, 200 - 40 * wave, 128 + 30 * np.sin(wave)], -1)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / f"{number:03}.png")
        if masks:
            Path(masks).mkdir(parents=True, exist_ok=True)
            Image.fromarray((wave > 0).astype(np.uint8)).save(Path(masks) / f"{number:03}.png")


main(*sys.argv[1:])
