"""The cost of decoding and resizing a picture: ours beside the usual ways.

Ours ends with uint8 pixels at the size wanted; the recipe of torchvision's references decodes
with Pillow, converts to float and interpolates as the model's transform does. The ways run in turn
on the same files, from the file cache; CPU time of this thread, one thread. A ratio is the median
over the rounds. The last table is the data check's: what a look at a known and at a new file costs.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import cv2
import numpy as np
import torch
from PIL import Image, ImageOps
from torch.nn import functional

from detpipe.data.image import load_image
from detpipe.data.look import Look, Looks, look

COUNT = 32
Size = tuple[int, int]
Way = Callable[[Path, Size | None], object]


def made_up(folder: Path) -> list[Path]:
    """JPEGs of 640 × 480 as smooth and as noisy as photographs are."""
    rng = np.random.default_rng(0)
    paths = [folder / f"{number}.jpg" for number in range(COUNT)]
    for path in paths:
        coarse = rng.integers(0, 256, (12, 16, 3)).astype(np.uint8)
        picture = cv2.resize(coarse, (640, 480), interpolation=cv2.INTER_CUBIC).astype(np.int16)
        picture += rng.integers(-12, 13, picture.shape).astype(np.int16)
        Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(path)
    return paths


def ours(path: Path, size: Size | None) -> object:
    return load_image(path, size=size)


def pillow(path: Path, size: Size | None) -> object:
    """Pillow's decoder and its own resize."""
    with Image.open(path) as opened:
        picture = ImageOps.exif_transpose(opened).convert("RGB")
    if size is not None:
        picture = picture.resize(size[::-1], Image.Resampling.BILINEAR)
    return np.array(picture)


def references(path: Path, size: Size | None) -> object:
    """Pillow, float tensors, interpolation without antialiasing: torchvision's references."""
    with Image.open(path) as opened:
        pixels = np.array(opened.convert("RGB"))
    image = torch.from_numpy(pixels).permute(2, 0, 1).float().div_(255)
    if size is None:
        return image
    return functional.interpolate(image[None], size=size, mode="bilinear", align_corners=False)[0]


def opencv(path: Path, size: Size | None) -> object:
    pixels = cv2.imdecode(np.frombuffer(path.read_bytes(), np.uint8), cv2.IMREAD_COLOR_RGB)
    if size is None:
        return pixels
    return cv2.resize(pixels, size[::-1], interpolation=cv2.INTER_AREA)


def timed(call: Callable[[Path], object], paths: Sequence[Path]) -> float:
    """CPU milliseconds a picture."""
    before = time.thread_time()
    for path in paths:
        call(path)
    return 1e3 * (time.thread_time() - before) / len(paths)


def compared(
    calls: Sequence[Callable[[Path], object]], paths: Sequence[Path], rounds: int
) -> list[list[float]]:
    """Milliseconds of each round after a first one that warms up, of each call."""
    rows = [[timed(call, paths) for call in calls] for _ in range(rounds + 1)]
    return [list(column) for column in zip(*rows[1:], strict=True)]


def show(title: str, times: Sequence[list[float]]) -> None:
    base, *others = times
    cells = [f"{statistics.median(base):8.3f}"]
    for values in others:
        share = statistics.median(b / v for b, v in zip(base, values, strict=True))
        cells.append(f"{statistics.median(values):8.3f} (× {share:.2f})")
    print(f"{title:24}", *cells)


def looks(paths: Sequence[Path], rounds: int) -> list[list[float]]:
    """A look at files whose content is known, at new ones, and a full decode by Pillow."""
    with tempfile.TemporaryDirectory() as name:
        store = Looks(Path(name))

        def see(path: Path, cache: str) -> Look:
            return look(str(path), decode=True, max_pixels=10**9, cache=cache)

        store.store([see(path, "") for path in paths])
        calls = [
            lambda path: see(path, store.file),
            lambda path: see(path, ""),
            lambda path: pillow(path, None),
        ]
        found = compared(calls, paths, rounds)
        store.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--pictures", type=Path, help="a folder of JPEGs instead of made-up ones")
    options = parser.parse_args()
    rounds = 3 if options.quick else 15
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = options.pictures
        paths = sorted(folder.rglob("*.jp*g"))[:COUNT] if folder else made_up(Path(name))
        if not paths:
            raise SystemExit(f"no JPEG in {folder}")
        height, width = load_image(paths[0]).shape[:2]
        print(
            f"{platform.machine()}, {os.cpu_count()} cores, {len(paths)} pictures, the first of "
            f"{width} x {height}, {rounds} rounds; CPU ms a picture (ratio of ours to it)\n"
        )
        print(f"{'decode, resize to':24} {'ours':>8} {'opencv':>17} {'pillow':>17} references")
        sizes: tuple[Size | None, ...] = (None, (height // 2, width // 2), (320, 320), (640, 640))
        for size in sizes:
            calls = [
                lambda path, way=way, size=size: way(path, size)
                for way in (ours, opencv, pillow, references)
            ]
            title = "its own size" if size is None else f"{size[1]} x {size[0]}"
            show(title, compared(calls, paths, rounds))
        print(f"\n{'check':24} {'known':>8} {'new':>17} {'pillow, decoded':>17}")
        show("a look", looks(paths, rounds))


if __name__ == "__main__":
    main()
