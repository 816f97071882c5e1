"""Frames of a video for a vision-language model on the chip; the file is named on the command line."""
import sys

import av
import numpy as np
import torch
import torch_npu


def frames(path, count=8):
    with av.open(path) as video:
        pictures = [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]
    wanted = np.linspace(0, len(pictures) - 1, count).round().astype(int)
    return torch.from_numpy(np.stack([pictures[i] for i in wanted]))


def main(path):
    pixels = frames(path).permute(0, 3, 1, 2)
    pixels = pixels.to("npu", torch.bfloat16) / 255
    patches = torch.nn.Conv2d(3, 64, 14, stride=14, dtype=torch.bfloat16).npu()
    with torch.no_grad():
        print("patches", tuple(patches(pixels).shape))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "clip.mp4")
