"""The order of images, and tables that belong together."""

from __future__ import annotations

import pytest

from detpipe.core.errors import DataError
from detpipe.evaluate.common import check_known, image_order


@pytest.mark.parametrize(
    "ids, order",
    [
        (["10", "9", "0"], ["0", "9", "10"]),
        (["10", "9", "a"], ["10", "9", "a"]),
        (["01", "2", "1"], ["01", "1", "2"]),
        (["1", "2", "01"], ["01", "1", "2"]),
        ([], []),
    ],
)
def test_images_go_by_number_if_all_are_numbers_whatever_the_order_of_rows(make, ids, order):
    assert image_order(make.images(ids)) == order


def test_what_is_not_known_is_counted_and_named(make):
    images, classes = make.images(["1", "2"]), make.classes("cat", "dog")
    boxes = make.boxes(
        ("1", "cat", 0, 0, 9, 9), ("x", "catt", 0, 0, 9, 9), ("x", "dog", 0, 0, 9, 9)
    )
    with pytest.raises(DataError) as error:
        check_known(images, classes, truth=boxes)
    assert str(error.value).splitlines()[1:] == [
        "- truth: 2 row(s) name 1 image(s) that the table of images (2 rows) does not have: 'x'",
        "- truth: 1 row(s) name 1 class(es) that the table of classes (2 rows) does not have: "
        "'catt'; did you mean 'cat'?",
    ]


def test_tables_of_nothing_belong_together(make):
    check_known(make.images([]), make.classes(), boxes=make.boxes(), detections=make.detections())
