"""Reads the image of a position in the run: from the files, through the transforms.

Everything random in it is a function of the run's seed and the position.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from detpipe.core.errors import DataError, DetpipeError
from detpipe.core.types import Target
from detpipe.data.config import Resize
from detpipe.data.geometry import resized, scaled, to_image
from detpipe.data.image import load_sized
from detpipe.data.order import Sampler
from detpipe.data.sound import flaw_of
from detpipe.data.store import Store
from detpipe.data.transform import Mixing, Sample, Step, Transform, Until


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Reads the image of a position and its target.

    Attributes:
        store: the images.
        sampler: which of them comes at which position.
        resize: the size of the result; None keeps the image's.
        augment: transforms, in their order.
        seed: of their randomness.
        pool: the store's indices from which further images are drawn, for transforms that mix.
    """

    store: Store
    sampler: Sampler
    resize: Resize | None = None
    augment: tuple[Step, ...] = ()
    seed: int = 0
    pool: npt.NDArray[np.int32] | None = None

    @classmethod
    def training(
        cls, store: Store, sampler: Sampler, *, augment: Sequence[Step], **options: Any
    ) -> Reader:
        """A reader whose further images are those of the sampler's first epoch.

        So the sampler's weights count for them too, and what it leaves out stays out.
        """
        pool = None
        if any(getattr(_bare(step), "mixes", False) for step in augment):
            pool = np.fromiter(map(sampler.index, range(len(store))), np.int32, len(store))
        return cls(store=store, sampler=sampler, augment=tuple(augment), pool=pool, **options)

    def read(self, position: int) -> tuple[Tensor, Target, str]:
        """Image, target and path of the image at ``position`` of the run.

        Where several images were mixed into one, the path is that of all, " + " between them.

        Raises:
            DataError: an image cannot be read, or is not of the size its table says; or a transform
                gives what cannot be learnt from.
        """
        transforms = [_bare(step) for step in self.augment if _in_use(step, position)]
        files: list[str] = []
        index = self.sampler.index(position)
        if not 0 <= index < len(self.store):
            raise DataError(
                f"train.sampler ({type(self.sampler).__name__}) gives image {index} at position "
                f"{position}; there are {len(self.store)} images, from 0 to {len(self.store) - 1}"
            )
        if not transforms:
            image, target = self._load(index, files)
            return image, target, files[0]
        try:
            with _own_randomness(self.seed, position):
                image, target = self._transformed(index, transforms, files)
        except DetpipeError:
            raise
        except Exception as error:
            if flaw := self._blame(position, index, transforms):
                raise DataError(flaw) from error
            raise
        if flaw_of((image, target), classes=len(self.store.class_names)):
            raise DataError(self._blame(position, index, transforms))
        if self.resize and not any(getattr(t, "sets_size", False) for t in transforms):
            height, width = image.shape[-2:]  # some transforms crop or enlarge the image
            image, target = resized(image, target, self.resize.target_size(height, width))
        return image, target, " + ".join(files)

    def _load(self, index: int, files: list[str]) -> Sample:
        """Image ``index`` of the store at the size of ``resize``."""
        path, target = self.store.path(index), self.store.target(index)
        files.append(str(path))
        pixels, original = load_sized(path, size=self.resize.target_size if self.resize else None)
        if original != target.original_size and any(target.original_size):
            raise DataError(
                f"{path}: the picture is {original[1]} × {original[0]} pixels (width × height), "
                f"but its table says {target.original_size[1]} × {target.original_size[0]}: its "
                f"boxes may not fit. Run the data pipeline again"
            )
        height, width = pixels.shape[:2]
        target = replace(target, original_size=original)
        return to_image(pixels), scaled(target, height / original[0], width / original[1])

    def _transformed(
        self, index: int, transforms: Sequence[Transform | Mixing], files: list[str]
    ) -> Sample:
        """Image ``index`` after ``transforms``; appends each file that was read."""
        image, target = self._load(index, files)
        for number, transform in enumerate(transforms):
            image, target = self._apply(transform, image, target, transforms[:number], files)
        return image, target

    def _apply(
        self,
        transform: Transform | Mixing,
        image: Tensor,
        target: Target,
        before: Sequence[Transform | Mixing],
        files: list[str],
    ) -> Sample:
        if getattr(transform, "mixes", False):
            draw = partial(self._another, before, files)
            return cast(Mixing, transform)(image, target, draw)
        return cast(Transform, transform)(image, target)

    def _blame(self, position: int, index: int, transforms: Sequence[Transform | Mixing]) -> str:
        """Which of ``transforms`` was the first to give something unsound, and what.

        They draw the same numbers again, one more of them each time.
        """
        for number, transform in enumerate(transforms, 1):
            files: list[str] = []
            try:
                with _own_randomness(self.seed, position):
                    before = self._transformed(index, transforms[: number - 1], files)
                    sample = self._apply(transform, *before, transforms[: number - 1], files)
            except Exception:  # noqa: BLE001 - it is the transform's own, and is raised as it is
                return ""
            if flaw := flaw_of(sample, classes=len(self.store.class_names)):
                name = getattr(getattr(transform, "func", transform), "__name__", "")
                return (
                    f"the transform {name or type(transform).__name__} gives {flaw}, of "
                    f"{' + '.join(files)} (position {position} of the run)"
                )
        return ""

    def _another(self, transforms: Sequence[Transform | Mixing], files: list[str]) -> Sample:
        assert self.pool is not None  # noqa: S101 - there is one if a transform mixes
        place = int(torch.randint(len(self.pool), ()).item())
        return self._transformed(int(self.pool[place]), transforms, files)


def _bare(step: Step) -> Transform | Mixing:
    return step.transform if isinstance(step, Until) else step


def _in_use(step: Step, position: int) -> bool:
    return not isinstance(step, Until) or position < step.position


@contextlib.contextmanager
def _own_randomness(seed: int, position: int) -> Iterator[None]:
    """Seeds the global generators from (seed, position); afterwards they are as before."""
    torch_seed, numpy_seed, python_seed = np.random.SeedSequence([seed, position]).generate_state(3)
    python_state, numpy_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed: that would seed the accelerators' generators as well.
        torch.default_generator.manual_seed(int(torch_seed))
        random.seed(int(python_seed))
        np.random.seed(int(numpy_seed))
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)
