"""From a checked data set to the classes that are trained."""

from __future__ import annotations

import logging

import pandas as pd

from detpipe.core.tables import CLASSES
from detpipe.data.check_config import CheckConfig

logger = logging.getLogger(__name__)


def list_classes(classes: pd.DataFrame, boxes: pd.DataFrame, config: CheckConfig) -> pd.DataFrame:
    """The ``classes`` table of the model, in the data set's order.

    Classes without a single box (such as the super-category of Roboflow's exports) are left out or
    kept, as the rule ``class_without_boxes`` says; either is logged.
    """
    used = classes["class_name"].isin(boxes["class_name"].unique())
    empty = [str(name).replace("[", "(") for name in classes["class_name"][~used]]
    if empty and config.setting("class_without_boxes")[0] == "drop":
        logger.warning("classes without boxes, left out of the model: %s", ", ".join(empty))
        classes = classes[used]
    elif empty:
        logger.warning("classes without boxes, kept as outputs of the model: %s", ", ".join(empty))
    if classes.empty:
        logger.warning("the data set has no class with a box: there is nothing to train on")
    return CLASSES.make(classes)
