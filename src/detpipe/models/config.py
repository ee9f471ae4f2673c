"""Configuration of the ``model`` and ``export`` sections.

A builder is imported only to check its options.
"""

from __future__ import annotations

import inspect
import json
import sys
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from detpipe.core.config import Frozen, Spec, check_spec, locate

_WEIGHTS = ("weights", "weights_backbone")


class ModelSpec(Spec):
    """Which builder makes the detector, and with what: ``build(num_classes, *, ...)``.

    A builder whose options hang together may have a function ``check_options(**options)`` beside
    it in its module; it is called before any work starts and raises ``ConfigError``.
    """

    @model_validator(mode="after")
    def _fits(self) -> Self:
        check_spec(self, where="model", provided=("num_classes",))
        target = locate(self.use)
        check = getattr(sys.modules.get(target.__module__), "check_options", None)
        if check is not None and getattr(target, "__name__", "") == "build":
            check(**self.options)
        return self

    def with_defaults(self) -> dict[str, Any]:
        """``use`` and every option of the builder, those left out with their defaults.

        Plain values as in JSON: this is what weights keep, so that they can be rebuilt when the
        defaults have changed.
        """
        defaults = {
            name: parameter.default
            for name, parameter in inspect.signature(locate(self.use)).parameters.items()
            if name != "num_classes" and parameter.default is not parameter.empty
        }
        plain: dict[str, Any] = json.loads(
            json.dumps({"use": self.use, **defaults, **self.options}, default=str)
        )
        return plain

    def without_weights(self) -> ModelSpec:
        """The same model for weights that are loaded afterwards: nothing is read or downloaded.

        A builder that takes ``load_weights`` gets it as false, and keeps the names of its weights,
        because some layers depend on them (frozen batch norm); others lose ``weights`` and
        ``weights_backbone``.
        """
        options: dict[str, Any] = self.options
        if "load_weights" in inspect.signature(locate(self.use)).parameters:
            options["load_weights"] = False
        else:
            options = {k: v for k, v in options.items() if k not in _WEIGHTS}
        return ModelSpec(use=self.use, **options)


class ExportConfig(Frozen):
    """The ``export`` section."""

    formats: list[Literal["onnx", "torchscript"]] = Field(default=["torchscript"], min_length=1)
    """Files to write; ``onnx`` needs ``pip install -e '.[onnx]'``."""
    parity_images: int = Field(default=8, gt=0)
    """Images on which each file is compared with the trained model."""
