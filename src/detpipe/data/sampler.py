"""The order of training images, as functions of the position in the run.

A sampler holds no state that moves: position 12,345 is the same image whether the run got there
without a break or was resumed there, with any number of workers, and whichever process of a
distributed run asks.

A sampler that repeats images goes through cycles of its own, which may be longer or shorter than
an epoch. An epoch stays what it is everywhere else: as many images as the training set has.

Any function that returns a :class:`Sampler` serves as ``train.sampler``. It may ask by name for
``length`` (images of the training set), ``seed``, ``store`` (the training set) and ``batch_size``
(images of one forward pass).
"""

from __future__ import annotations

import difflib
import fnmatch
import glob
import logging
import re
from pathlib import PurePosixPath
from typing import Annotated

import numpy as np
from pydantic import AfterValidator, Field

from detpipe.core.config import Spec, check_spec
from detpipe.core.errors import ConfigError, DataError, one_message
from detpipe.data.order import Cycle, Grouped, Ints, Permuted, Sampler, Sequential
from detpipe.data.store import Store

logger = logging.getLogger(__name__)

RESOURCES = ("length", "seed", "store", "batch_size")
"""What a sampler may ask for by name."""


def _checked_inner(spec: Spec) -> Spec:
    check_spec(spec, where="sampler", provided=RESOURCES)
    return spec


Inner = Annotated[Spec, AfterValidator(_checked_inner)]
"""Another sampler, whose options are checked with those of the sampler it is given to."""


def shuffle(*, length: int, seed: int) -> Sampler:
    """Every image once an epoch, each epoch in an order of its own.

    Args:
        length: images in the store.
        seed: same seed, same order.

    Raises:
        DataError: ``length`` is 0.
    """
    return Permuted(length=_checked(length), seed=seed)


def sequential(*, length: int) -> Sampler:
    """The images in the order of the store, again and again.

    Args:
        length: images in the store.

    Raises:
        DataError: ``length`` is 0.
    """
    return Sequential(_checked(length))


def repeat_factor(
    *, store: Store, seed: int, threshold: Annotated[float, Field(gt=0, le=1)] = 0.001
) -> Sampler:
    """Images with rare classes more often than once an epoch (repeat-factor sampling of LVIS).

    With f(c) the share of images that show class c, a class has the factor
    r(c) = max(1, sqrt(threshold / f(c))), an image the largest factor of its classes, and an image
    without objects 1 (Gupta et al. 2019, "LVIS", appendix B.2). A cycle has as many images as the
    factors sum up to, rounded. Each image comes in it the whole number of times just below or just
    above its factor, in expectation its factor (times what the rounding of the sum takes). Crowd
    boxes do not count.

    Args:
        store: the training images.
        seed: same seed, same order.
        threshold: classes on a smaller share of the images than this are repeated. On N images no
            share is below 1 / N: the usual 0.001 is made for very many images.

    Raises:
        DataError: the store is empty.
    """
    length = _checked(len(store))
    images, labels, counts = _presence(store)
    factors = np.ones(length)
    np.maximum.at(factors, images, np.sqrt(threshold * length / counts[labels]))
    if factors.max() == 1:
        logger.warning(
            "train.sampler: repeat_factor repeats nothing: no class is on less than %g of the %d "
            "training images; raise threshold, or use shuffle",
            threshold,
            length,
        )
    return Cycle(factors, length=round(factors.sum()), seed=seed)


def class_balanced(
    *, store: Store, seed: int, power: Annotated[float, Field(ge=0, le=1)] = 1.0
) -> Sampler:
    """Images of rare classes as often as those of frequent ones.

    An image's weight is the sum over its classes of 1 / n(c) ** power, where n(c) is the number of
    images that show class c. With power 1 that is what drawing a class, each as likely as the
    others, and then one of its images amounts to (class-aware sampling: Shen et al. 2016, "Relay
    Backpropagation"). Images with objects share in a cycle as many places as there are such
    images, in proportion to their weights; images without objects come once. Crowd boxes do not
    count.

    An image that alone shows a class comes very often: 1 / C of the time if there are C classes.
    A smaller ``power`` softens that, as does :func:`repeat_factor`.

    Args:
        store: the training images.
        seed: same seed, same order.
        power: 1 balances whole; 0.5 goes half the way.

    Raises:
        DataError: the store is empty.
    """
    length = _checked(len(store))
    images, labels, counts = _presence(store)
    weights = np.zeros(length)
    np.add.at(weights, images, counts[labels] ** -power)
    shown = weights > 0
    if shown.any():
        weights /= weights[shown].mean()
    return Cycle(np.where(shown, weights, 1.0), length=length, seed=seed)


def weighted(
    *,
    store: Store,
    seed: int,
    weights: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)] | None],
) -> Sampler:
    """Images of some folders more often, or less often, than others.

    A cycle has as many places as there are images with a weight above 0, which share them in
    proportion to their weights: an image of weight 2 comes twice as often as one of weight 1.

    Args:
        store: the training images.
        seed: same seed, same order.
        weights: pattern → weight. A pattern is compared with the image's path relative to the
            root; ``*`` stands for any text, ``/`` included (``clip_a/*``), ``?`` for any
            character, ``[ab]`` for one of these. The first pattern that matches counts; an image
            that none matches has weight 1; 0 leaves images out; ``null`` takes a pattern out.

    Raises:
        ConfigError: a pattern has no effect, or nothing is left.
        DataError: the store is empty.
    """
    by_image = np.full(_checked(len(store)), np.nan)
    paths = [store.paths[image] for image in range(len(store))]
    mistakes = []
    for pattern, weight in weights.items():
        if weight is None:
            continue
        matches = re.compile(fnmatch.translate(pattern)).match
        hit = np.array([matches(path) is not None for path in paths])
        if not hit.any():
            mistakes.append(f"'{pattern}' matches no training image{_near(pattern, paths)}")
        elif not np.isnan(by_image[hit]).any():
            mistakes.append(f"'{pattern}' has no effect: patterns before it match all its images")
        by_image[hit & np.isnan(by_image)] = weight
    by_image[np.isnan(by_image)] = 1
    if not by_image.any():
        mistakes.append("every training image has weight 0")
    if mistakes:
        raise ConfigError(one_message("train.sampler: weights cannot be used:", mistakes))
    return Cycle(by_image, length=int((by_image > 0).sum()), seed=seed)


def aspect_ratio_grouped(
    *,
    length: int,
    seed: int,
    store: Store,
    batch_size: int,
    sampler: Inner | None = None,
    bins: Annotated[int, Field(ge=2)] = 2,
) -> Sampler:
    """Batches of images of like aspect ratio, which need less padding.

    What another sampler gives is regrouped window by window, a window being as many whole batches
    as hold the training set once. Its images are sorted into bins of width / height, which are
    equally wide on a logarithmic scale between 1/2 and 2, the outer ones open: 2 bins part at 1,
    4 bins at 0.71, 1 and 1.41. Each bin is cut into batches in the order the images came in; what
    is left over in the bins is put together in order of ratio; then the batches are shuffled. So
    every place of the other sampler comes exactly once, and at most ``bins - 1`` batches of a
    window mix bins.

    Args:
        length: images in the store.
        seed: same seed, same order.
        store: the training images; those of unknown size count as square.
        batch_size: images of one forward pass.
        sampler: the sampler that is regrouped; :func:`shuffle` by default.
        bins: more of them save more padding, and mix the images less.

    Raises:
        ConfigError: the other sampler cannot be built.
        DataError: the store is empty.
    """
    spec = sampler or Spec(use="detpipe.data.sampler.shuffle")
    inner = spec.build(length=_checked(length), seed=seed, store=store, batch_size=batch_size)
    height, width = store.sizes.T.astype(np.float64)
    known = (height > 0) & (width > 0)
    ratios = np.divide(width, height, out=np.ones(len(store)), where=known)
    edges = 2 ** np.linspace(-1, 1, bins + 1)[1:-1]
    return Grouped(inner, ratios, edges=edges, batch_size=batch_size, seed=seed)


def _presence(store: Store) -> tuple[Ints, Ints, Ints]:
    """Which image shows which class, crowds left out.

    Returns:
        images and labels, both ``[P]``: every pair that occurs, once; and counts ``[C + 1]``:
        images that show class c, 0 for the background.
    """
    images = np.repeat(np.arange(len(store)), np.diff(store.offsets))[~store.iscrowd]
    labels = store.labels[~store.iscrowd].astype(np.int64)
    stride = len(store.class_names) + 1
    images, labels = np.divmod(np.unique(images * stride + labels), stride)
    return images, labels, np.bincount(labels, minlength=stride)


def _near(pattern: str, paths: list[str]) -> str:
    """``; did you mean '…'?`` for a pattern, or what the paths look like."""
    folders = {str(folder) for path in paths for folder in list(PurePosixPath(path).parents)[:-1]}
    known = [f"{glob.escape(folder)}/*" for folder in sorted(folders)]
    close = difflib.get_close_matches(pattern, known, 1)
    return f"; did you mean '{close[0]}'?" if close else f"; their paths are such as '{paths[0]}'"


def _checked(length: int) -> int:
    if length <= 0:
        raise DataError(
            "there is no image to train on: the train split is empty; draw one with "
            "data.split.by: ratio, or say what the data set's own are with data.split.rename"
        )
    return length
