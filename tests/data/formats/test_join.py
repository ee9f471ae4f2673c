from __future__ import annotations

import pandas as pd
import pytest

from detpipe.core.errors import ConfigError, DataError
from detpipe.core.tables import BOX_COLUMNS
from detpipe.data.check_config import CheckConfig
from detpipe.data.config import DataConfig
from detpipe.data.formats import coco, yolo
from detpipe.data.formats.base import sample
from detpipe.data.rules import RULE_OF

from .conftest import rules


def joined(root, *sets):
    """The sets as configuration has them, read as one."""
    config = {"reader": {"use": "join", "sets": list(sets)}}
    return DataConfig.model_validate(config).reader.build(root)


def counts(found) -> dict[str, int]:
    return found.boxes["class_name"].value_counts().to_dict()


def files(root, found) -> list[str]:
    """What the images' paths lead to."""
    paths = [(root / path).resolve() for path in found.images["path"]]
    assert all(path.is_file() for path in paths)
    return [str(path) for path in paths]


def test_chess_and_cones_are_both_there(shared_data, tmp_path):
    left, right = shared_data / "chess_coco_roboflow", shared_data / "cones_yolo"
    chess, cones = coco.read(left), yolo.read(right)
    found = joined(
        shared_data,
        {"path": "chess_coco_roboflow", "use": "coco", "drop": ["bishop", "pieces"]},
        {"path": str(right), "use": "detpipe.data.formats.yolo.read", "rename": {"cone": "cube"}},
    )
    assert len(found.images) == len(chess.images) + len(cones.images)
    assert counts(found) == {**counts(chess), "cube": len(cones.boxes)}
    assert found.images["split"].tolist() == [*chess.images["split"], *cones.images["split"]]
    assert files(shared_data, found) == files(left, chess) + files(right, cones)
    pd.testing.assert_frame_equal(
        found.boxes[BOX_COLUMNS],
        pd.concat([chess.boxes, cones.boxes], ignore_index=True)[BOX_COLUMNS],
    )
    # Each box still belongs to the picture it was drawn in.
    path_of = dict(zip(found.images["image_id"], found.images["path"], strict=True))
    owners = found.boxes["image_id"].map(path_of)
    own = dict(zip(cones.images["image_id"], cones.images["path"], strict=True))
    assert owners[len(chess.boxes) :].tolist() == [
        f"cones_yolo/{own[image]}" for image in cones.boxes["image_id"]
    ]
    ours = [name for name in chess.classes["class_name"] if name not in ("bishop", "pieces")]
    assert found.classes["class_name"].tolist() == [*ours, "cube"]
    absent = found.issues[found.issues["rule"] == "class_not_in_set"].set_index("file")
    assert absent["value"]["chess_coco_roboflow"] == "cube"
    assert absent["value"]["cones_yolo"] == sample(ours, at_most=10)
    assert set(rules(found)) <= set(RULE_OF)
    assert "cones_yolo/data.yaml" in found.issues["file"].tolist()


@pytest.fixture
def one_set(picture, coco_file):
    """A set of one picture; ids start at 1 in each."""

    def write(folder: str, *names: str, stray: bool = False):
        picture(f"{folder}/a.jpg", width=60 + len(folder))
        objects = [
            {"id": n, "image_id": 1, "category_id": n, "bbox": [1, 2, 3, 4]}
            for n in range(1, len(names) + 1)
        ]
        if stray:
            objects.append({"id": 77, "image_id": 9, "category_id": 1, "bbox": [1, 2, 3, 4]})
        coco_file(
            f"{folder}/train.json",
            annotations=objects,
            categories=[{"id": n, "name": name} for n, name in enumerate(names, 1)],
        )

    return write


def test_ids_that_two_sets_use_get_the_sets_name(tmp_path, one_set):
    one_set("one", "cat")
    one_set("two", "cat", "dog")
    found = joined(tmp_path, {"path": "one", "use": "coco"}, {"path": "two", "use": "coco"})
    assert found.images["image_id"].tolist() == ["one/1", "two/1"]
    assert found.boxes["image_id"].tolist() == ["one/1", "two/1", "two/1"]
    assert found.boxes["annotation_id"].tolist() == ["one/1", "two/1", "two/2"]
    said = found.issues[found.issues["rule"] == "set_ids"]
    assert said["value"].tolist() == ["image_id, such as '1'", "annotation_id, such as '1'"]


def test_ids_that_differ_stay(tmp_path, one_set, picture, coco_file):
    one_set("one", "cat")
    picture("two/b.jpg")
    coco_file(
        "two/train.json", images=[{"id": 5, "file_name": "b.jpg"}],
        annotations=[{"id": 1, "image_id": 5, "category_id": 1, "bbox": [1, 2, 3, 4]}],
    )  # fmt: skip
    found = joined(tmp_path, {"path": "one", "use": "coco"}, {"path": "two", "use": "coco"})
    assert found.images["image_id"].tolist() == ["1", "5"]
    assert found.boxes["image_id"].tolist() == ["1", "5"]
    assert found.boxes["annotation_id"].tolist() == ["one/1", "two/1"]


def test_a_box_of_no_image_does_not_fall_to_another_set(tmp_path, one_set, picture, coco_file):
    one_set("one", "cat", stray=True)  # of image 9
    picture("two/b.jpg")
    coco_file("two/train.json", images=[{"id": 9, "file_name": "b.jpg"}], annotations=[])
    found = joined(tmp_path, {"path": "one", "use": "coco"}, {"path": "two", "use": "coco"})
    stray = found.boxes[found.boxes["annotation_id"] == "77"]
    assert len(stray) == 1
    assert not stray["image_id"].isin(found.images["image_id"]).any()


def test_sets_of_one_name_and_a_name_of_ones_own(tmp_path, one_set):
    one_set("a/set", "cat")
    one_set("b/set", "cat")
    two = [{"path": "a/set", "use": "coco"}, {"path": "b/set", "use": "coco"}]
    assert joined(tmp_path, *two).images["image_id"].tolist() == ["a/set/1", "b/set/1"]
    two[1]["name"] = "b"
    assert joined(tmp_path, *two).images["image_id"].tolist() == ["set/1", "b/1"]
    same = [{**two[0]}, {**two[0]}]
    found = joined(tmp_path, *same)
    assert found.images["image_id"].tolist() == ["1-a/set/1", "2-a/set/1"]


def test_names_whose_ids_run_together(tmp_path, one_set, picture, coco_file):
    for folder, key in (("x", "y/1"), ("x/y", "1"), ("z", "1")):
        picture(f"{folder}/a.jpg")
        coco_file(f"{folder}/train.json", images=[{"id": key, "file_name": "a.jpg"}],
                  annotations=[])  # fmt: skip
    found = joined(tmp_path, *({"path": p, "name": p, "use": "coco"} for p in ("x", "x/y", "z")))
    assert found.images["image_id"].tolist() == ["1-x/y/1", "2-x/y/1", "3-z/1"]


def test_each_sets_classes_and_split_are_its_own(tmp_path, one_set):
    one_set("one", "cat", "dog")
    one_set("two", "cat", "dog", "cow")
    found = joined(
        tmp_path,
        {"path": "one", "use": "coco", "rename": {"dog": "beast"}, "split": "val"},
        {"path": "two", "use": "coco", "keep": ["cow", "cat"]},
    )
    assert found.classes["class_name"].tolist() == ["cat", "beast", "cow"]
    assert counts(found) == {"cat": 2, "beast": 1, "cow": 1}
    assert found.images["split"].tolist() == ["val", "train"]
    absent = found.issues[found.issues["rule"] == "class_not_in_set"]
    assert dict(zip(absent["file"], absent["value"], strict=True)) == {
        "one": "cow", "two": "beast",
    }  # fmt: skip
    assert absent["severity"].tolist() == ["warning", "warning"]


def test_a_class_that_a_set_lists_is_its_own_without_a_box_too(tmp_path, one_set, coco_file):
    one_set("one", "cat", "dog")
    one_set("two", "cat", "dog")
    coco_file("two/train.json", annotations=[])  # of cat and dog
    found = joined(tmp_path, {"path": "one", "use": "coco"}, {"path": "two", "use": "coco"})
    assert "class_not_in_set" not in rules(found)


def test_sets_beside_the_root_and_in_it(tmp_path, one_set):
    one_set("root/in", "cat")
    one_set("other", "cat")
    root = tmp_path / "root"
    for other in ("../other", str(tmp_path / "other")):
        found = joined(root, {"path": "in", "use": "coco"}, {"path": other, "use": "coco"})
        assert found.images["path"].tolist() == ["in/a.jpg", "../other/a.jpg"]
        files(root, found)


def test_an_absolute_path_from_a_root_that_is_a_link(tmp_path, one_set):
    one_set("far/away/top/in", "cat")
    one_set("other", "cat")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "far/away/top")
    found = joined(
        link, {"path": ".", "use": "auto"}, {"path": str(tmp_path / "other"), "use": "coco"}
    )
    assert files(link, found) == [
        str(tmp_path / "far/away/top/in/a.jpg"), str(tmp_path / "other/a.jpg"),
    ]  # fmt: skip


def test_groups_of_two_sets_stay_apart_and_extra_survives(tmp_path, one_set, monkeypatch):
    one_set("one", "cat")
    one_set("two", "cat")
    read = coco.read

    def with_more(root):
        found = read(root)
        return found._replace(
            images=found.images.assign(group="video 1"), boxes=found.boxes.assign(extra='{"a": 1}')
        )

    monkeypatch.setattr(coco, "read", with_more)
    from detpipe.core.config import locate

    locate.cache_clear()
    found = joined(tmp_path, {"path": "one", "use": "coco"}, {"path": "two", "use": "coco"})
    locate.cache_clear()
    assert found.images["group"].tolist() == ["one/video 1", "two/video 1"]
    assert found.boxes["extra"].tolist() == ['{"a": 1}'] * 2


def test_the_same_picture_in_two_sets_is_found_by_the_check(tmp_path, one_set):
    from detpipe.data.check import inspect

    one_set("one", "cat")
    one_set("two", "cat")
    (tmp_path / "two/a.jpg").write_bytes((tmp_path / "one/a.jpg").read_bytes())
    found = joined(
        tmp_path,
        {"path": "one", "use": "coco", "split": "train"},
        {"path": "two", "use": "coco", "split": "val"},
    )
    checked = inspect(found, tmp_path, CheckConfig(workers=0))
    assert rules(checked)["same_picture_in_two_splits"] == 1


@pytest.mark.parametrize(
    ("one", "message"),
    [
        ({"path": "one", "use": "coco", "annotation": "x"}, "did you mean 'annotations'"),
        ({"path": "one", "use": "cocoo"}, "did you mean 'coco'"),
        ({"path": "one"}, "use"),
        ({"use": "coco"}, "path"),
        ({"path": "one", "use": "coco", "keep": ["a"], "drop": ["b"]}, "exclude each other"),
    ],
)
def test_mistakes_are_found_before_anything_is_read(one, message):
    config = {"reader": {"use": "join", "sets": [one]}}
    with pytest.raises(ValueError, match=message):
        DataConfig.model_validate(config)


def test_folders_that_are_not_there_and_no_sets(tmp_path):
    with pytest.raises(DataError, match=r"no such folder: a \(.*/a\), b \(.*/b\)"):
        joined(tmp_path, {"path": "a", "use": "coco"}, {"path": "b", "use": "coco"})
    with pytest.raises(DataError, match="'sets' is empty"):
        joined(tmp_path)
    with pytest.raises((ConfigError, ValueError), match="needs the option 'sets'"):
        DataConfig.model_validate({"reader": "join"})


def test_a_class_that_a_set_does_not_have_names_the_set(tmp_path, one_set):
    one_set("one", "cat")
    with pytest.raises(DataError, match=r"join: one\.drop: 'dog'"):
        joined(tmp_path, {"path": "one", "use": "coco", "drop": ["dog"]})
