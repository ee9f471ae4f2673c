"""The pipelines, one file each: nodes and wiring on one screen.

Kedro reads the type hints of node functions when it starts, so the names in them must exist then;
``DataFrame``, ``Module``, ``Store`` and ``Weights`` stand for the real classes without importing
pandas and torch.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from detpipe.core.errors import DataError

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch.nn import Module

    from detpipe.core.types import Weights
    from detpipe.data.store import Store
else:
    DataFrame = Module = Store = Weights = Any

__all__ = ["DataFrame", "Module", "Store", "Weights", "existing"]


def existing(raw: Path) -> Path:
    """The data set's folder, for nodes that read its pictures.

    Raises:
        DataError: it is not there.
    """
    if not raw.is_dir():
        raise DataError(
            f"the data set's folder '{raw}' is not there; it is needed for its pictures: name it "
            f"with --params raw=<folder>, DETPIPE_RAW=<folder>, or 'raw' in the catalog"
        )
    return raw
