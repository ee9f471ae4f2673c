from __future__ import annotations

import pytest

from detpipe.core.errors import DataError
from detpipe.core.tables import BOX_COLUMNS
from detpipe.data.formats import csv, voc

from .conftest import rules


def as_rows(found, *, key="path"):
    """Boxes as sorted tuples with the image's path instead of its id."""
    boxes = found.boxes.merge(found.images[["image_id", "path"]], on="image_id")
    return sorted(boxes[[key, "class_name", *BOX_COLUMNS]].itertuples(index=False, name=None))


def test_cards_agree_with_their_xml_box_for_box(shared_data):
    root = shared_data / "cards_csv"
    found = csv.read(root)
    assert found.images["split"].value_counts().to_dict() == {"test": 67, "train": 50}
    assert found.boxes["class_name"].value_counts().to_dict() == {
        "nine": 43, "queen": 41, "jack": 40, "king": 37, "ace": 36, "ten": 34,
    }  # fmt: skip
    assert set(zip(found.images["width"], found.images["height"], strict=True)) == {
        (378, 504), (960, 540),
    }  # fmt: skip
    assert as_rows(found) == as_rows(voc.read(root, annotations="images", images="images"))


def test_bccd_csv_with_its_own_column_names(shared_data):
    root = shared_data / "bccd_voc"
    found = csv.read(root, annotations="test.csv", images="BCCD/JPEGImages")
    assert as_rows(found) == as_rows(voc.read(root))


@pytest.mark.parametrize(
    ("name", "boxes", "said"),
    [
        ("OSBS_029", 61, {"columns"}),
        ("2018_SJER_3_252000_4107000_image_477_truth", 7, {"columns"}),
        ("2018_SJER_3_252000_4107000_image_477", 7, {"columns", "score_column"}),
        ("2019_BLAN_3_751000_4330000_image_crop_bbox", 4, {"columns", "score_column"}),
        ("example", 79, {"columns"}),
        ("testfile_multi", 37, {"columns"}),
    ],
)
def test_trees_in_all_their_dialects(shared_data, name, boxes, said):
    found = csv.read(shared_data / "trees_csv", annotations=f"data/{name}.csv")
    assert len(found.boxes) == boxes
    assert (found.boxes["x2"] > found.boxes["x1"]).all()
    assert (found.boxes["y2"] > found.boxes["y1"]).all()
    assert set(rules(found)) == said


def test_trees_column_order_and_number_labels(shared_data):
    file = "data/2018_SJER_3_252000_4107000_image_477_truth.csv"  # xmin,xmax,ymin,ymax
    found = csv.read(shared_data / "trees_csv", annotations=file)
    assert found.boxes[BOX_COLUMNS].iloc[0].tolist() == [1, 103, 82, 235]
    assert found.classes["class_name"].tolist() == ["0"]


def test_a_row_of_zeros_is_an_empty_image(shared_data):
    found = csv.read(
        shared_data / "trees_csv", annotations="tests/blank_annotations.csv", images="data"
    )
    assert found.images["path"].tolist() == ["data/OSBS_029.tif"]
    assert found.boxes.empty
    assert rules(found) == {"columns": 1, "empty_image_row": 1}


@pytest.mark.parametrize(
    "text",
    [
        "filename,xmin,ymin,xmax,ymax,class\na.jpg,1,2,3,4,cat\nb.jpg,,,,,\n",
        "Class;XMax;XMin;YMin;YMax;Image\ncat;3;1;2;4;a.jpg\n;0;0;0;0;b.jpg\n",
        "/home/me/pictures/a.jpg,1,2,3,4,cat\nC:\\me\\b.jpg,,,,,\n",
        "\ufefflabel\timage_path\tx1\ty1\tx2\ty2\ncat\ta.jpg\t1\t2\t3\t4\nx\tb.jpg\t0\t0\t0\t0\n",
    ],
)
def test_one_truth_in_four_dialects(tmp_path, picture, text):
    picture("images/a.jpg")
    picture("images/b.jpg")
    (tmp_path / "boxes.csv").write_text(text, "utf-8")
    found = csv.read(tmp_path)
    assert as_rows(found) == [("images/a.jpg", "cat", 1, 2, 3, 4)]
    assert found.images["path"].tolist() == ["images/a.jpg", "images/b.jpg"]
    assert rules(found)["columns"] == 1


def test_columns_that_cannot_be_guessed_are_a_setting(tmp_path, picture):
    picture("a.jpg")
    (tmp_path / "boxes.csv").write_text("was,wo,l,o,r,u,teil\ncat,a.jpg,1,2,3,4,val\n")
    with pytest.raises(DataError, match=r"which column is path, class_name, x1.*it has was, wo"):
        csv.read(tmp_path)
    columns = {
        "class_name": "was", "path": "wo", "x1": "l", "y1": "o", "x2": "r", "y2": "u",
        "split": "teil",
    }  # fmt: skip
    found = csv.read(tmp_path, columns=columns)
    assert as_rows(found) == [("a.jpg", "cat", 1, 2, 3, 4)]
    assert found.images["split"].tolist() == ["val"]
    assert found.issues.empty  # nothing was guessed
    with pytest.raises(DataError, match="'columns' has klass"):
        csv.read(tmp_path, columns={**columns, "class_name": "klass"})


def test_names_that_pandas_would_take_for_missing(tmp_path, picture):
    picture("a.jpg")
    (tmp_path / "boxes.csv").write_text(
        'file,x1,y1,x2,y2,label\na.jpg,1,2,3,4,NA\n"a.jpg",1,2,3,x,"a,b"\n'
    )
    found = csv.read(tmp_path)
    assert found.classes["class_name"].tolist() == ["NA", "a,b"]
    assert found.boxes["y2"].isna().tolist() == [False, True]  # the check reports it


def test_one_image_in_two_splits_keeps_both_rows(tmp_path, picture):
    picture("a.jpg")
    for split in ("train", "test"):
        (tmp_path / f"{split}.csv").write_text("file,x1,y1,x2,y2,label\na.jpg,1,2,3,4,cat\n")
    found = csv.read(tmp_path)
    assert sorted(found.images["image_id"]) == ["test-a.jpg", "train-a.jpg"]
    assert sorted(found.boxes["image_id"]) == ["test-a.jpg", "train-a.jpg"]


def test_files_that_cannot_be_told_apart_are_listed(shared_data, tmp_path):
    with pytest.raises(DataError, match=r"cannot tell which csv file.*OSBS_029\.csv"):
        csv.read(shared_data / "trees_csv")
    with pytest.raises(DataError, match="no such annotation file"):
        csv.read(tmp_path, annotations="boxes.csv")
    (tmp_path / "boxes.csv").write_bytes(b"")
    with pytest.raises(DataError, match=r"boxes\.csv cannot be read"):
        csv.read(tmp_path)


@pytest.mark.parametrize(
    ("header", "order"),
    [
        ("image,x,y,w,h,label", "xywh"),
        ("image,label,bbox_x,bbox_y,bbox_width,bbox_height", "xywh"),
        ("image,x,y,width,height,label", "xywh"),
        ("image,width,height,left,top,w,h,label", "WHxywh"),
    ],
)
def test_boxes_as_corner_and_size(tmp_path, picture, header, order):
    picture("a.jpg")
    columns = header.split(",")
    values = dict(zip([c for c in columns if c not in ("image", "label")],
                      [{"x": 1, "y": 2, "w": 30, "h": 20, "W": 64, "H": 48}[o] for o in order],
                      strict=True))  # fmt: skip
    row = {"image": "a.jpg", "label": "cat", **values}
    (tmp_path / "boxes.csv").write_text(f"{header}\n{','.join(str(row[c]) for c in columns)}\n")
    found = csv.read(tmp_path)
    assert as_rows(found) == [("a.jpg", "cat", 1, 2, 31, 22)]
    assert found.images["width"].tolist() == [64 if "W" in order else 0]
    (said,) = found.issues.to_dict("records")
    assert said["rule"] == "columns" and "left upper corner" in said["action"]


def test_corner_and_size_can_be_named(tmp_path, picture):
    picture("a.jpg")
    (tmp_path / "boxes.csv").write_text("a,b,c,d,e,f\na.jpg,cat,1,2,30,20\na.jpg,cat,,,,\n")
    columns = {"path": "a", "class_name": "b", "x": "c", "y": "d", "w": "e", "h": "f"}
    found = csv.read(tmp_path, columns=columns)
    assert as_rows(found) == [("a.jpg", "cat", 1, 2, 31, 22)]
    assert rules(found) == {"empty_image_row": 1}
    with pytest.raises(DataError, match=r"which column is x2, y2.*or x, y, w, h"):
        csv.read(tmp_path, columns={"path": "a", "class_name": "b", "x1": "c", "y1": "d"})


def test_the_encoding_is_an_option(tmp_path, picture):
    picture("a.jpg")
    text = "image,xmin,ymin,xmax,ymax,label\na.jpg,1,2,3,4,é\n"
    (tmp_path / "boxes.csv").write_text(text, "latin-1")
    with pytest.raises(DataError, match=r"not written in 'utf-8-sig'.*option 'encoding'"):
        csv.read(tmp_path)
    with pytest.raises(DataError, match=r"not written in 'latein'.*option 'encoding'"):
        csv.read(tmp_path, encoding="latein")
    assert csv.read(tmp_path, encoding="latin-1").classes["class_name"].tolist() == ["é"]
    (tmp_path / "boxes.csv").write_text(text, "utf-16")
    assert csv.read(tmp_path, encoding="utf-16").classes["class_name"].tolist() == ["é"]


def test_decimal_commas_are_reported(tmp_path, picture):
    picture("a.jpg")
    text = "image;xmin;ymin;xmax;ymax;label\na.jpg;1,5;2;15,5;16;a\na.jpg;1;1;9;9;b\n"
    (tmp_path / "boxes.csv").write_text(text)
    found = csv.read(tmp_path).issues.set_index("rule").loc["decimal_comma"]
    assert found["severity"] == "error"
    assert found["value"] == "1 row(s), the first: 1,5; 2; 15,5; 16"
    assert "1.5, not 1,5" in found["action"]
