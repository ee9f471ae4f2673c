"""The pipelines, one file each: nodes and wiring on one screen.

Kedro reads the type hints of node functions when it starts, so the names in them must exist then;
``DataFrame``, ``Module`` and ``Weights`` stand for the real classes without importing pandas and
torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch.nn import Module

    from detpipe.core.types import Weights
else:
    DataFrame = Module = Weights = Any

__all__ = ["DataFrame", "Module", "Weights"]
