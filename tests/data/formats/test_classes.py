from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detpipe.core.errors import DataError
from detpipe.core.tables import BOXES, CLASSES, IMAGES
from detpipe.data.config import ClassesConfig, DataConfig
from detpipe.data.formats import coco
from detpipe.data.formats.base import Annotations, IssueLog
from detpipe.data.formats.classes import choose_classes
from detpipe.data.rules import RULE_OF

from .conftest import rules


def annotations(objects: list[tuple[str, str]], classes: list[str], images=("1", "2", "3")):
    """A set with these (image, class) boxes; ``extra`` and ``group`` hold something."""
    return Annotations(
        IMAGES.make(
            [{"image_id": i, "path": f"{i}.jpg", "width": 9, "height": 9, "split": "", "group": "g"}
             for i in images]
        ),
        BOXES.make(
            [{"image_id": image, "annotation_id": str(n), "class_name": name, "x1": n, "y1": 0,
              "x2": n + 1, "y2": 1, "area": 1, "iscrowd": False, "difficult": False,
              "extra": f'{{"n": {n}}}'} for n, (image, name) in enumerate(objects)]
        ) if objects else BOXES.empty(),
        CLASSES.make([{"class_name": name} for name in classes]),
        IssueLog().table(),
    )  # fmt: skip


SET = annotations([("1", "cat"), ("1", "dog"), ("2", "dog"), ("2", "cow")], ["dog", "cat", "cow"])


def chosen(found=SET, **config):
    return choose_classes(found, ClassesConfig(**config))


def names(found) -> list[str]:
    return found.classes["class_name"].tolist()


def test_nothing_to_do_is_nothing_done():
    assert chosen() is SET


def test_rename_merges_and_keeps_the_order():
    found = chosen(rename={"cow": "dog"})
    assert names(found) == ["dog", "cat"]
    assert found.boxes["class_name"].tolist() == ["cat", "dog", "dog", "dog"]
    assert found.boxes["extra"].tolist() == SET.boxes["extra"].tolist()
    assert rules(found) == {"class_renamed": 1}
    assert found.issues["value"].iloc[0] == "cow -> dog (1 boxes)"


def test_rename_happens_all_at_once():
    found = chosen(rename={"cat": "dog", "dog": "cat"})
    assert names(found) == ["cat", "dog", "cow"]
    assert found.boxes["class_name"].tolist() == ["dog", "cat", "cat", "cow"]


@pytest.mark.parametrize("config", [{"keep": ["cat"]}, {"drop": ["cow", "dog"]}])
def test_boxes_of_other_classes_go_and_images_stay(config):
    found = chosen(**config)
    assert names(found) == ["cat"]
    assert found.boxes["annotation_id"].tolist() == ["0"]
    assert found.boxes.index.tolist() == [0]
    pd.testing.assert_frame_equal(found.images, SET.images)
    row = found.issues.iloc[0]
    assert (row["severity"], row["rule"]) == ("info", "class_dropped")
    assert row["value"] == "2 class(es), 3 box(es): dog (2), cow (1)"
    assert "1 image(s) have no other object" in row["action"]  # 2; 3 had none before
    assert set(rules(found)) | set(rules(chosen(rename={"cow": "dog"}))) <= set(RULE_OF)


def test_keep_and_drop_speak_of_the_new_names():
    assert names(chosen(rename={"cow": "beef"}, keep=["beef"])) == ["beef"]
    with pytest.raises(
        DataError, match=r"data\.classes\.keep: 'cow': it has been renamed to 'beef'"
    ):
        chosen(rename={"cow": "beef"}, keep=["cow"])


def test_unknown_names_come_all_at_once_with_what_was_meant():
    with pytest.raises(DataError) as caught:
        chosen(rename={"Cat": "x", "horse": "y"}, drop=["dgo"])
    message = str(caught.value)
    assert "data.classes.rename: 'Cat': did you mean 'cat'?" in message
    assert "data.classes.rename: 'horse'\n" in message
    assert "data.classes.drop: 'dgo': did you mean 'dog'?" in message
    assert message.endswith("It has 'dog', 'cat', 'cow'")


def test_no_class_left():
    with pytest.raises(DataError, match="no class is left of 'dog', 'cat', 'cow'"):
        chosen(drop=["dog", "cat", "cow"])


def test_what_only_boxes_have_can_be_mended_or_dropped_and_is_left_for_the_check():
    found = annotations([("1", "cat"), ("1", "unknown class number 7")], ["cat"])
    mended = chosen(found, rename={"unknown class number 7": "dog"})
    assert names(mended) == ["cat", "dog"]
    assert mended.boxes["class_name"].tolist() == ["cat", "dog"]
    assert len(chosen(found, drop=["unknown class number 7"]).boxes) == 1
    assert len(chosen(found, keep=["cat"]).boxes) == 2


def test_names_in_another_unicode_form_and_with_blanks_are_the_same():
    found = annotations([("1", "café")], ["café", "tea"])
    assert names(chosen(found, keep=[" cafe\N{COMBINING ACUTE ACCENT}"])) == ["café"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"keep": ["a"], "drop": ["b"]}, "exclude each other"),
        ({"rename": {"a": " "}}, "rename: a must get a name"),
        ({"kep": ["a"]}, "did you mean 'keep'"),
    ],
)
def test_configuration_that_cannot_be_meant(config, message):
    with pytest.raises(ValueError, match=message):
        DataConfig.model_validate({"reader": "auto", "classes": config})


@pytest.mark.parametrize("reader", ["coco", {"use": "coco", "annotations": "x.json"}])
def test_readers_have_short_names(reader):
    config = DataConfig.model_validate({"reader": reader})
    assert config.reader.partial(args=1).func is coco.read


@pytest.mark.parametrize(
    ("reader", "message"),
    [
        ("cocoa", "no reader 'cocoa': did you mean 'coco'"),
        ({"use": "coco", "annotation": "x"}, "did you mean 'annotations'"),
        ("no.such.reader", "no module"),
    ],
)
def test_a_reader_that_is_not_there(reader, message):
    with pytest.raises(ValueError, match=message):
        DataConfig.model_validate({"reader": reader})


@pytest.mark.parametrize("name", ["use", "whole"])
def test_a_short_name_replaces_the_base_configurations_reader(tmp_path, name):
    from kedro.config import OmegaConfigLoader

    base = tmp_path / "conf/base"
    base.mkdir(parents=True)
    base.joinpath("parameters.yml").write_text("data: {reader: {use: detpipe.data.sample.read}}")
    given = "yolo" if name == "whole" else {"use": "yolo"}
    loader = OmegaConfigLoader(
        str(tmp_path / "conf"), runtime_params={"data": {"reader": given}}, base_env="base",
        default_run_env="base",
    )  # fmt: skip
    config = DataConfig.model_validate(loader["parameters"]["data"])
    assert config.reader.use == "detpipe.data.formats.yolo.read"


# --- whatever is asked for ---------------------------------------------------------------------

LETTERS = st.sampled_from("abcdef")


@settings(max_examples=25, deadline=None)
@given(
    objects=st.lists(st.tuples(st.sampled_from("123"), LETTERS), max_size=12),
    rename=st.dictionaries(LETTERS, st.sampled_from("abcxyz"), max_size=3),
    choice=st.sampled_from(["keep", "drop", ""]),
    picked=st.sets(st.sampled_from("abcdefxyz"), min_size=1, max_size=3),
)
def test_classes_by_hand(objects, rename, choice, picked):
    found = annotations(objects, list("abcdef"))
    new = [rename.get(name, name) for name in "abcdef"]
    wanted = {
        "keep": [n for n in new if n in picked],
        "drop": [n for n in new if n not in picked],
        "": new,
    }[choice]
    config = ClassesConfig(rename=rename, **({choice: sorted(picked)} if choice else {}))
    if not wanted or (choice and not picked <= set(new)):
        with pytest.raises(DataError):
            choose_classes(found, config)
        return
    result = choose_classes(found, config)
    assert names(result) == list(dict.fromkeys(wanted))
    by_hand = [
        (str(n), image, rename.get(name, name))
        for n, (image, name) in enumerate(objects)
        if rename.get(name, name) in wanted
    ]
    columns = ["annotation_id", "image_id", "class_name"]
    assert list(result.boxes[columns].itertuples(index=False, name=None)) == by_hand
    pd.testing.assert_frame_equal(result.images, found.images)
    pd.testing.assert_frame_equal(result.boxes, BOXES.make(result.boxes))
    assert found.boxes["class_name"].tolist() == [name for _, name in objects]  # left alone
