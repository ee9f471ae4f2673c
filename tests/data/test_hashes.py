from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from detpipe.data.hashes import NO_HASH, groups, near_pairs, perceptual_hash


def distance(one: int, other: int) -> int:
    return ((one ^ other) & (2**64 - 1)).bit_count()


def photograph(seed: int, height: int = 96, width: int = 128) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (12, 16, 3)).astype(np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def grey(picture: Image.Image) -> np.ndarray:
    return np.asarray(picture.convert("L"))


def test_the_hash_is_the_difference_hash_by_hand() -> None:
    cells = np.random.default_rng(0).integers(0, 256, (8, 9)).astype(np.uint8)
    picture = np.kron(cells, np.ones((10, 10), np.uint8))
    bits = (cells[:, 1:] > cells[:, :-1]).ravel()
    expected = int("".join("01"[int(bit)] for bit in bits), 2)
    # The 64 bits are stored byte by byte.
    found = perceptual_hash(picture).to_bytes(8, "little", signed=True)
    assert int.from_bytes(found, "big") == expected


def test_the_same_picture_in_other_clothes_is_near_and_others_are_far() -> None:
    picture = photograph(1)
    own = perceptual_hash(grey(picture))
    same = [
        picture.resize((97, 71), Image.Resampling.BOX),
        picture.resize((200, 150), Image.Resampling.BICUBIC),
        ImageEnhance.Brightness(picture).enhance(0.7),
        ImageEnhance.Color(picture).enhance(0.2),
        picture.quantize(32).convert("RGB"),
    ]
    assert max(distance(own, perceptual_hash(grey(one))) for one in same) <= 3
    others = [perceptual_hash(grey(photograph(seed))) for seed in range(2, 60)]
    assert min(distance(own, other) for other in others) > 12


@pytest.mark.parametrize("value", [0, 127, 255])
def test_flat_pictures_have_no_hash(value: int) -> None:
    noise = np.random.default_rng(value).integers(-9, 10, (480, 640))
    flat = np.full((480, 640), value)
    for picture in (flat, flat + noise, flat + np.linspace(0, 9, 640)):
        assert perceptual_hash(picture.clip(0, 255).astype(np.uint8)) == NO_HASH
    spot = flat.copy()
    spot[200:280, 200:280] = 255 - value + 20 * (value == 127)
    assert perceptual_hash(spot.astype(np.uint8)) == NO_HASH


def all_pairs(hashes: np.ndarray, bits: int) -> list[list[int]]:
    values = [int(one) for one in hashes]
    return [
        [i, j]
        for i, one in enumerate(values)
        for j, other in enumerate(values[i + 1 :], start=i + 1)
        if distance(one, other) <= bits
    ]


@pytest.mark.parametrize("bits", [0, 1, 3, 4, 7, 16])
def test_near_pairs_are_all_pairs_by_brute_force(bits: int) -> None:
    rng = np.random.default_rng(bits)
    seeds = rng.integers(-(2**63), 2**63, 40)
    family = [seeds]
    for _ in range(6):  # each one with up to 20 bits turned over
        turned = seeds.copy()
        for place in range(len(seeds)):
            chosen = rng.choice(64, rng.integers(1, 21), replace=False)
            turned[place] ^= np.bitwise_or.reduce(np.uint64(1) << chosen.astype(np.uint64)).view(
                np.int64
            )
        family.append(turned)
    hashes = np.unique(np.concatenate(family))
    expected = all_pairs(hashes, bits)
    assert near_pairs(hashes, bits=bits).tolist() == expected
    assert bool(expected) == (bits > 0)


def test_near_pairs_of_skewed_hashes_and_of_few() -> None:
    skewed = np.arange(300, dtype=np.int64)  # all but nine bits are equal
    assert near_pairs(skewed, bits=1).tolist() == all_pairs(skewed, 1)
    for few in (skewed[:0], skewed[:1]):
        assert near_pairs(few, bits=3).shape == (0, 2)


def test_groups_are_what_hangs_together() -> None:
    pairs = [(7, 3), (1, 2), (3, 9), (5, 5), (2, 8), (9, 7)]
    assert groups(pairs) == [[1, 2, 8], [3, 7, 9], [5]]
    chain = [(n + 1, n) for n in range(5000)]
    assert groups(chain) == [list(range(5001))]
    assert groups([]) == []
