from __future__ import annotations

import json

import pandas as pd
import pytest
from PIL import Image

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


def test_four_numbers_in_one_text(tmp_path, picture):
    """Wheat heads: image_id without ending, bbox as a list, and no column of classes."""
    picture("train/b6ab.jpg")
    text = 'image_id,width,height,bbox,source\nb6ab,64,48,"[4.0, 5.0, 20.0, 30.0]",usask_1\n'
    (tmp_path / "train.csv").write_text(text + 'b6ab,64,48,"[1, 2, 3]",usask_1\n')
    with pytest.raises(DataError, match=r"which column is class_name.*option 'class_name'"):
        csv.read(tmp_path)
    found = csv.read(tmp_path, class_name="wheat", columns={"group": "source"})
    assert found.boxes[BOX_COLUMNS].iloc[0].tolist() == [4, 5, 24, 35]
    assert found.boxes[BOX_COLUMNS].iloc[1].isna().all()  # three numbers: the check reports it
    assert found.classes["class_name"].tolist() == ["wheat"]
    assert found.images[["path", "width", "height", "split", "group"]].to_numpy().tolist() == [
        ["train/b6ab.jpg", 64, 48, "train", "usask_1"]
    ]
    assert "left upper corner" in found.issues.set_index("rule").loc["columns", "action"]
    with pytest.raises(DataError, match="exclude each other"):
        csv.read(tmp_path, class_name="wheat", columns={"class_name": "source"})


@pytest.mark.parametrize("box", ["[4, 5, 24, 35]", "4 5 24 35", "(4,5,24,35)", " 4;5;24;35 "])
def test_corners_in_one_text_are_a_setting(tmp_path, picture, box):
    picture("a.jpg")
    (tmp_path / "boxes.csv").write_text(f"image\tlabel\tbbox\na.jpg\tcat\t{box}\na.jpg\tx\t\n")
    found = csv.read(tmp_path, columns={"corners": "bbox"})
    assert as_rows(found) == [("a.jpg", "cat", 4, 5, 24, 35)]
    assert rules(found) == {"columns": 1, "empty_image_row": 1}
    assert csv.read(tmp_path).boxes["x2"].tolist() == [28]  # guessed to be a size


def test_columns_that_are_named_go_before_those_that_could_be_guessed(tmp_path, picture):
    picture("a.jpg")
    (tmp_path / "boxes.csv").write_text(
        "image,label,xmin,ymin,xmax,ymax,full\na.jpg,cat,1,2,3,4,5 6 10 20\n"
    )
    assert as_rows(csv.read(tmp_path)) == [("a.jpg", "cat", 1, 2, 3, 4)]
    found = csv.read(tmp_path, columns={"bbox": "full"})
    assert as_rows(found) == [("a.jpg", "cat", 5, 6, 15, 26)]


def test_shares_are_multiplied_by_the_size_of_the_upright_image(tmp_path, picture):
    exif = Image.Exif()
    exif[0x0112] = 6
    picture("a.jpg", width=64, height=48, exif=exif)
    picture("b.jpg", width=100, height=10)
    (tmp_path / "boxes.csv").write_text(
        "image,x,y,w,h,label\nb.jpg,0.5,0.5,0.25,0.5,cat\na.jpg,0.5,0.25,0.25,0.5,cat\nb.jpg,,,,,\n"
    )
    found = csv.read(tmp_path, shares=True)
    assert as_rows(found) == [
        ("a.jpg", "cat", 24, 16, 36, 48), ("b.jpg", "cat", 50, 5, 75, 10),
    ]  # fmt: skip
    assert sorted(found.boxes["area"]) == [125, 384]


def test_columns_by_position(tmp_path, picture):
    """Google's AutoML: no header, two empty columns, shares."""
    picture("a.jpg", width=100, height=50)
    (tmp_path / "boxes.csv").write_text("TRAIN,gs://b/a.jpg,cat,0.1,0.2,,,0.5,0.6,,\n")
    columns = {"split": 0, "path": 1, "class_name": 2, "x1": 3, "y1": 4, "x2": 7, "y2": 8}
    found = csv.read(tmp_path, columns=columns, shares=True)
    assert as_rows(found) == [("a.jpg", "cat", 10, 10, 50, 30)]
    assert found.images["split"].tolist() == ["TRAIN"]
    with pytest.raises(DataError, match="mixes the two"):
        csv.read(tmp_path, columns={**columns, "x1": "left"})
    with pytest.raises(DataError, match="'columns' has 11"):
        csv.read(tmp_path, columns={**columns, "x1": 11})


def test_predictions_and_truth_are_not_mixed(tmp_path, picture):
    picture("a.jpg")
    truth = "image,xmin,ymin,xmax,ymax,label\na.jpg,1,2,3,4,cat\n"
    (tmp_path / "train.csv").write_text(truth)
    (tmp_path / "train_results.csv").write_text(
        "image,xmin,ymin,xmax,ymax,label,score\na.jpg,5,6,7,8,dog,0.9\n"
    )
    (tmp_path / "classes_train.csv").write_text("cat,0\ndog,1\n")
    found = csv.read(tmp_path)
    assert as_rows(found) == [("a.jpg", "cat", 1, 2, 3, 4)]
    values = dict(zip(found.issues["rule"], found.issues["value"], strict=True))
    assert values["score_column"] == "train_results.csv"
    assert values["annotation_files"] == "train.csv"
    both = csv.read(tmp_path, annotations=["train.csv", "train_results.csv"])
    assert len(both.boxes) == 2  # asked for by name


def test_the_only_file_with_boxes_is_taken(tmp_path, picture):
    picture("a.jpg")
    (tmp_path / "boxes.csv").write_text("image,xmin,ymin,xmax,ymax,label\na.jpg,1,2,3,4,cat\n")
    (tmp_path / "classes.csv").write_text("cat,0\ndog,1\n")
    found = csv.read(tmp_path)
    assert as_rows(found) == [("a.jpg", "cat", 1, 2, 3, 4)]
    assert rules(found) == {"annotation_files": 1, "columns": 1}


def test_trees_are_told_apart_in_the_message(shared_data):
    with pytest.raises(DataError) as caught:
        csv.read(shared_data / "trees_csv")
    text = str(caught.value)
    assert "image_477.csv (predictions: it has scores)" in text
    assert "data/classes.csv (no boxes)" in text
    assert "data/OSBS_029.csv," in text and "image_477_truth.csv," in text


def test_every_tree_file_against_pandas(shared_data):
    """Each dialect of the folder, its own columns by name: an independent reading."""
    files = sorted((shared_data / "trees_csv/data").glob("*.csv"))
    seen = 0
    for path in files:
        theirs = pd.read_csv(path)
        if "xmin" not in theirs:
            continue
        found = csv.read(shared_data / "trees_csv", annotations=f"data/{path.name}")
        truth = theirs[["xmin", "ymin", "xmax", "ymax"]].to_numpy(float).tolist()
        assert found.boxes[BOX_COLUMNS].to_numpy().tolist() == truth
        assert found.boxes["class_name"].tolist() == theirs["label"].astype(str).tolist()
        seen += 1
    assert seen == 7


def test_a_file_name_with_blanks(shared_data, tmp_path):
    """trees_csv's only picture with blanks and .JPG has no boxes: a row of zeros says so."""
    name = "AWPE Pigeon Lake 2020 DJI_0005.JPG"
    (tmp_path / name).symlink_to(shared_data / "trees_csv/data" / name)
    (tmp_path / "a.csv").write_text(f"image_path,xmin,ymin,xmax,ymax,label\n{name},0,0,0,0,Bird\n")
    found = csv.read(tmp_path)
    assert found.images["path"].tolist() == [name] and found.boxes.empty


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (
            "a.jpg,1,2,3,4,cat\na.jpg,1,2,3,4,big, cat\n",
            "- line 3: 7 values, not 6: a.jpg,1,2,3,4,big",
        ),
        ("a.jpg,1,2\n", "- line 2: 3 values, not 6: a.jpg,1,2"),
        ('a.jpg,1,2,3,4,"cat\na.jpg,1,2,3,4,dog\n', "up to line 3: a quotation mark is not closed"),
    ],
)
def test_malformed_rows_are_named_by_file_and_line(tmp_path, picture, rows, says):
    picture("a.jpg")
    (tmp_path / "boxes.csv").write_text(f"image,xmin,ymin,xmax,ymax,label\n{rows}")
    with pytest.raises(DataError) as caught:
        csv.read(tmp_path)
    assert f"{tmp_path / 'boxes.csv'} cannot be read as csv" in str(caught.value)
    assert says in str(caught.value)


def test_an_inch_is_no_open_quotation_mark(tmp_path, picture):
    picture("a.jpg")
    (tmp_path / "boxes.csv").write_text('image,xmin,ymin,xmax,ymax,label\na.jpg,1,2,3,4,5" disk\n')
    assert csv.read(tmp_path).classes["class_name"].tolist() == ['5" disk']


@pytest.mark.parametrize(
    ("encoding", "label"), [("cp1252", "é"), ("gb18030", "鸟"), ("utf-16", "é"), ("utf-16-le", "é")]
)
def test_the_encodings_that_would_do_are_proposed(tmp_path, picture, encoding, label):
    picture("a.jpg")
    rows = f"image,xmin,ymin,xmax,ymax,label\na.jpg,1,2,3,4,{label}\n"
    (tmp_path / "boxes.csv").write_bytes(rows.encode(encoding))
    with pytest.raises(DataError, match="not written in 'utf-8-sig'") as caught:
        csv.read(tmp_path)
    assert f"'{encoding}' ('a.jpg,1,2,3,4,{label}')" in str(caught.value)
    assert csv.read(tmp_path, encoding=encoding).classes["class_name"].tolist() == [label]


def test_extra_keeps_the_other_columns(tmp_path, picture):
    picture("a.jpg")
    (tmp_path / "boxes.csv").write_text(
        'image,xmin,ymin,xmax,ymax,label,occluded,geometry\n'
        'a.jpg,1,2,3,4,cat,1,"POLYGON ((1 2, 3 4))"\n'
    )  # fmt: skip
    found = csv.read(tmp_path, extra=True)
    assert json.loads(found.boxes["extra"][0]) == {
        "occluded": "1", "geometry": "POLYGON ((1 2, 3 4))",
    }  # fmt: skip
    assert "extra" not in csv.read(tmp_path).boxes


def test_flags_areas_and_classes_of_a_written_set(tmp_path, picture):
    picture("images/a.jpg")
    (tmp_path / "classes.txt").write_text("dog\ncat\n")
    (tmp_path / "boxes.csv").write_text(
        "path,width,height,split,group,class_name,x1,y1,x2,y2,iscrowd,difficult,area,extra\n"
        'images/a.jpg,64,48,train,clip,cat,1,2,5,6,1,0,9.5,"{""pose"":""Left""}"\n'
        "images/a.jpg,64,48,train,clip,cat,1,2,5,6,0,True,,\n"
    )
    found = csv.read(tmp_path, extra=True)
    assert found.classes["class_name"].tolist() == ["dog", "cat"]
    assert found.boxes["iscrowd"].tolist() == [True, False]
    assert found.boxes["difficult"].tolist() == [False, True]
    assert found.boxes["area"].tolist() == [9.5, 16]
    assert found.boxes["extra"].tolist() == ['{"pose":"Left"}', ""]
    assert found.images["group"].tolist() == ["clip"]
    assert rules(found) == {"columns": 1, "class_list": 1}


def test_a_list_of_classes_can_be_named(tmp_path, picture):
    picture("a.jpg")
    (tmp_path / "boxes.csv").write_text("image,xmin,ymin,xmax,ymax,label\na.jpg,1,2,3,4,cat\n")
    (tmp_path / "classes.txt").write_text("dog\n")  # not of these boxes: not believed unasked
    assert csv.read(tmp_path).classes["class_name"].tolist() == ["cat"]
    (tmp_path / "names").write_text("dog\ncat\n")
    assert csv.read(tmp_path, classes="names").classes["class_name"].tolist() == ["dog", "cat"]
    with pytest.raises(DataError, match="no such file of classes"):
        csv.read(tmp_path, classes="nowhere")


def test_an_image_in_two_groups(tmp_path, picture):
    picture("a.jpg")
    picture("b.jpg")
    (tmp_path / "boxes.csv").write_text(
        "image,xmin,ymin,xmax,ymax,label,patient\n"
        "a.jpg,1,2,3,4,cat,p1\na.jpg,1,2,3,4,cat,p2\nb.jpg,1,2,3,4,cat,p2\n"
    )
    found = csv.read(tmp_path, columns={"group": "patient"})
    assert found.images["group"].tolist() == ["p1", "p2"]
    issue = found.issues.set_index("rule").loc["image_in_two_groups"]
    assert issue["value"] == "1 image(s): a.jpg"


def test_a_split_column_leads_to_its_folders(tmp_path, picture):
    """The same base name in two folders: each row means its own."""
    picture("train/a.jpg")
    picture("test/a.jpg")
    (tmp_path / "boxes.csv").write_text(
        "image,xmin,ymin,xmax,ymax,label,split\n"
        "a.jpg,1,2,3,4,cat,test\na.jpg,5,6,7,8,dog,train\na.jpg,2,2,3,4,cat,test\n"
    )
    found = csv.read(tmp_path)
    assert as_rows(found) == [
        ("test/a.jpg", "cat", 1, 2, 3, 4), ("test/a.jpg", "cat", 2, 2, 3, 4),
        ("train/a.jpg", "dog", 5, 6, 7, 8),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["a,b", 'a "b"', "a/b", "a-b", "a (b)", "a & b", "NA", "None"])
def test_class_names_with_every_sign(tmp_path, picture, name):
    """D26."""
    picture("a.jpg")
    quoted = name.replace('"', '""')
    (tmp_path / "boxes.csv").write_text(
        f'image,xmin,ymin,xmax,ymax,label\na.jpg,1,2,3,4,"{quoted}"\n'
    )
    assert csv.read(tmp_path).classes["class_name"].tolist() == [name]


def test_the_split_of_a_folder(tmp_path, picture):
    for split in ("train", "val"):
        picture(f"{split}/a.jpg")
        (tmp_path / split / "boxes.csv").write_text(
            f"image,xmin,ymin,xmax,ymax,label\na.jpg,1,2,3,4,{split}\n"
        )
    found = csv.read(tmp_path)
    assert as_rows(found) == [
        ("train/a.jpg", "train", 1, 2, 3, 4),
        ("val/a.jpg", "val", 1, 2, 3, 4),
    ]
    assert found.images["split"].tolist() == ["train", "val"]
