"""A trained detector from its published weights."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from detpipe.core.errors import WeightsError, one_message
from detpipe.core.types import Weights
from detpipe.models.config import ModelSpec
from detpipe.models.weights import load_into


def restore(weights: Weights, spec: ModelSpec, class_names: Sequence[str]) -> nn.Module:
    """The detector of ``spec`` with ``weights`` in it, in evaluation mode; nothing is downloaded.

    Args:
        weights: published weights; their metadata says what they were trained as.
        spec: the model section of the configuration.
        class_names: the data set's classes in label order.

    Raises:
        WeightsError: the weights belong to other classes, or to a model built otherwise.
    """
    mistakes = []
    trained = [str(name) for name in weights.metadata["classes"]]
    if trained != list(class_names):
        mistakes.append(
            f"classes: the weights know {', '.join(trained)} (in this order), the data set has "
            f"{', '.join(class_names)}"
        )
    own = ModelSpec.model_validate(weights.metadata["model"])
    built, asked = (s.without_weights().with_defaults() for s in (own, spec))
    mistakes += [
        f"model.{key}: the weights were trained with {built.get(key)!r}, the configuration says "
        f"{asked.get(key)!r}"
        for key in sorted(built.keys() | asked.keys())
        if built.get(key) != asked.get(key)
    ]
    if mistakes:
        raise WeightsError(
            one_message("the trained weights do not fit; train again or set back:", mistakes)
        )
    model: nn.Module = own.without_weights().build(num_classes=len(trained))
    load_into(model, weights.state, source="trained weights", strict_head=True)
    return model.eval()
