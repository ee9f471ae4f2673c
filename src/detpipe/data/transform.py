"""What a transform of training images is.

An image is ``uint8 [3, H, W]``, its target in pixels of it. A transform may draw from torch's,
numpy's or Python's global generators: the stream seeds them for each image from the run's seed and
the image's position, and restores them. One with an attribute ``sets_size = True`` decides the size
at which images reach the model; after any other the stream brings them to its own size again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from detpipe.core.types import Target

Sample = tuple[Tensor, Target]
Transform = Callable[[Tensor, Target], Sample]
"""Of one image."""
Draw = Callable[[], Sample]
"""Gives another image of the store at each call."""


class Mixing(Protocol):
    """A transform of several images."""

    mixes: bool
    """True."""

    def __call__(self, image: Tensor, target: Target, draw: Draw) -> Sample:
        """The image and its target with something of those that ``draw`` gives.

        What ``draw`` gives is at the size of ``stream.resize``, after the transforms that stand
        before this one; it may be of another size than ``image``. A transform that leaves its image
        alone does not call it, so that nothing is read in vain.
        """
        ...


@dataclass(frozen=True)
class Until:
    """A transform that is switched off in the course of the run.

    Attributes:
        transform: the transform.
        position: the first image of the run that goes without it (0 is the first of all).
    """

    transform: Transform | Mixing
    position: int


Step = Transform | Mixing | Until
