"""Detections of any framework, read by what their files look like."""

from __future__ import annotations

import json
import unicodedata

import pandas as pd
import pytest

from detpipe.core.errors import DataError
from detpipe.core.tables import DETECTIONS
from detpipe.evaluate import coco
from detpipe.evaluate.config import FilesConfig
from detpipe.evaluate.files import coco_results, read_detections


@pytest.fixture
def known(make):
    """Three images, two classes."""
    images = make.images(["1", "22", "0003"])
    return images.assign(path=["train/a.jpg", "train/b.jpg", "c d.PNG"]), make.classes("cat", "dog")


EXPECTED = [("1", "cat", 1.0, 2.0, 11.0, 22.0, 0.5), ("0003", "dog", 0.0, 0.0, 4.0, 4.0, 0.25)]


def rows(table):
    assert list(table.columns) == list(DETECTIONS.columns)
    return list(table.itertuples(index=False, name=None))


def written(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def result(image_id, bbox, score, **more):
    return {"image_id": image_id, "bbox": bbox, "score": score, **more}


def results(ids=("1", "0003"), **columns):
    """The expected two detections as COCO results, with a column of names or ids."""
    ((name, values),) = columns.items()
    boxes = ([1, 2, 10, 20], [0, 0, 4, 4])
    return [
        result(i, b, s, **{name: v})
        for i, b, s, v in zip(ids, boxes, (0.5, 0.25), values, strict=True)
    ]


@pytest.mark.parametrize("name", ["category_name", "class_name", "label", "category", "Class"])
@pytest.mark.parametrize("ids", [("1", "0003"), (1, "0003"), (1.0, "0003")])
def test_coco_results_with_names(tmp_path, known, name, ids):
    path = written(tmp_path / "r.json", results(ids, **{name: ["cat", "dog"]}))
    assert rows(read_detections(path, *known)) == EXPECTED


@pytest.mark.parametrize("ids", [(17, 3), ("17", "3")])
def test_category_ids_go_by_the_mapping(tmp_path, known, ids):
    path = written(tmp_path / "r.json", results(category_id=ids))
    mapping = {"17": "cat", "3": "dog"}
    assert rows(read_detections(path, *known, categories=mapping)) == EXPECTED


def test_category_ids_go_by_the_files_own_categories(tmp_path, known):
    own = [{"id": 0, "name": "cat"}, {"id": 9, "name": "dog"}]
    whole = {"categories": own, "annotations": results(category_id=[0, 9])}
    path = written(tmp_path / "r.json", whole)
    assert rows(read_detections(path, *known)) == EXPECTED


@pytest.mark.parametrize("ids", [[1, 2], [0, 1], [90, 7]])
def test_bare_ids_are_refused_with_both_ways_out(tmp_path, known, ids):
    path = written(tmp_path / "r.json", results(category_id=ids))
    with pytest.raises(DataError) as error:
        read_detections(path, *known)
    for part in (f"'{ids[0]}', '{ids[1]}'", "'cat', 'dog'", f"categories: {{{ids[0]}: <its class>",
                 "evaluate_files.categories=<a COCO file"):  # fmt: skip
        assert part in str(error.value)


def test_bare_numbers_in_a_class_column_are_ids_too(tmp_path, known):
    text = "image_id,class,x1,y1,x2,y2,score\n1,0,1,2,11,22,.5\n0003,1,0,0,4,4,.25\n"
    path = written(tmp_path / "d.csv", text)
    with pytest.raises(DataError, match=r"2 category id.*have no name: '0', '1'"):
        read_detections(path, *known)
    assert rows(read_detections(path, *known, categories={"0": "cat", "1": "dog"})) == EXPECTED


def test_a_coco_file_tells_the_names(tmp_path, known):
    truth = {"images": [], "categories": [{"id": 8, "name": "cat"}, {"id": 2, "name": "dog"}]}
    told = written(tmp_path / "truth.json", truth)
    path = written(tmp_path / "r.json", results(category_id=[8, 2]))
    assert rows(read_detections(path, *known, categories=str(told))) == EXPECTED
    FilesConfig(categories=str(told))
    assert FilesConfig(categories={8: "cat"}).categories == {"8": "cat"}
    for content, says in (
        (None, "there is no file"), ("{", "not valid JSON"), ({}, "no 'categories'"),
        ({"categories": [{"id": 1}]}, "an 'id' and a 'name'"),
    ):  # fmt: skip
        bad = tmp_path / f"{says[:5]}.json"
        if content is not None:
            written(bad, content)
        with pytest.raises(DataError, match=says):
            read_detections(path, *known, categories=str(bad))


def test_messages_name_the_section_that_asked(tmp_path, known):
    path = written(tmp_path / "r.json", results(category_id=[1, 2]))
    mistakes = []
    for images, more in (
        (known[0], {}), (known[0], {"categories": str(tmp_path / "gone.json")}),
        (known[0].iloc[:0], {}),
    ):  # fmt: skip
        with pytest.raises(DataError) as error:
            read_detections(path, images, known[1], section="compare", **more)
        mistakes.append(str(error.value))
    assert "'compare: {categories: {1: <its class>" in mistakes[0]
    assert "or compare.categories=<a COCO file" in mistakes[0]
    assert "compare.categories: there is no file" in mistakes[1]
    assert "compare.dataset" in mistakes[2]
    assert "evaluate_files" not in "".join(mistakes)


def coco_file(tmp_path, numbered):
    """A whole COCO file with its own numbers: id → file name."""
    content = {
        "images": [{"id": i, "file_name": name} for i, name in numbered.items()],
        "categories": [{"id": 0, "name": "cat"}, {"id": 5, "name": "dog"}],
        "annotations": [
            {**row, "category_id": c}
            for row, c in zip(results(list(numbered)[:2], a=["", ""]), (0, 5), strict=True)
        ],
    }
    return written(tmp_path / "own.json", content)


@pytest.mark.parametrize("first, second", [(22, 1), (7, 8), (1, 22)])
def test_a_coco_files_own_list_says_which_picture_a_number_is(tmp_path, known, first, second):
    """Also where the same numbers mean other pictures here."""
    file = coco_file(tmp_path, {first: "a.jpg", second: "other/c d.png"})
    assert rows(read_detections(file, *known)) == EXPECTED


def test_a_list_of_other_files_does_not_matter(tmp_path, known):
    file = coco_file(tmp_path, {1: "http_1.png", 3: "http_2.png"})
    assert rows(read_detections(file, *known)) == EXPECTED


def test_boxes_in_one_column_of_parquet_and_csv(tmp_path, known):
    table = pd.DataFrame(results(category_name=["cat", "dog"]))
    table.to_parquet(tmp_path / "a.parquet")
    table.to_csv(tmp_path / "a.csv", index=False)
    for name in ("a.parquet", "a.csv"):
        assert rows(read_detections(tmp_path / name, *known)) == EXPECTED


def test_ids_of_a_column_with_gaps(tmp_path, known):
    table = pd.DataFrame(results(("1.0", "3.0"), category_name=["cat", "dog"]))
    table.to_csv(tmp_path / "a.csv", index=False)
    assert rows(read_detections(tmp_path / "a.csv", *known)) == EXPECTED


def test_an_infinite_box_is_refused(tmp_path, known):
    file = written(
        tmp_path / "a.csv", "image_id,class_name,score,x1,y1,x2,y2\n1,cat,0.5,0,0,inf,4\n"
    )
    with pytest.raises(DataError, match="no number; first: row 1"):
        read_detections(file, *known)


def test_names_in_the_file_come_before_ids(tmp_path, known):
    found = [
        {**row, "category_id": number}
        for row, number in zip(results(category_name=["cat", "dog"]), (2, 1), strict=True)
    ]
    path = written(tmp_path / "r.json", found)
    assert rows(read_detections(path, *known)) == EXPECTED
    assert rows(read_detections(path, *known, categories={"1": "cat", "2": "dog"})) == EXPECTED


@pytest.mark.parametrize("known_as", ["NFC", "NFD"])
def test_names_of_another_unicode_form_are_the_same(tmp_path, make, known_as):
    name = unicodedata.normalize(known_as, "café")
    text = "image_id,class_name,x1,y1,x2,y2,score\n1,{},1,2,11,22,.5\n"
    for form in ("NFC", "NFD"):
        path = written(tmp_path / "d.csv", text.format(unicodedata.normalize(form, "café ")))
        found = read_detections(path, make.images(["1"]), make.classes(name))
        assert found["class_name"].tolist() == [name]


def test_ids_that_restart_in_each_split_are_found_without_it(tmp_path, make):
    """Numbers are the original ids, not the names of other pictures."""
    order = [3, 1, 2, 12, 10]
    images = make.images([f"test-{i}" for i in order])
    images = images.assign(path=[f"test/{name}.jpg" for name in (1, 2, 3, 10, 12)])
    found = [result(i, [0, 0, 4, 4], 0.5, category_name="cat") for i in order]
    path = written(tmp_path / "r.json", found)
    read = read_detections(path, images, make.classes("cat"))
    assert read["image_id"].tolist() == images["image_id"].tolist()
    files = [path.rpartition("/")[2] for path in images["path"]]
    named = [{**row, "image_id": file} for file, row in zip(files, found, strict=True)]
    read = read_detections(written(path, named), images, make.classes("cat"))
    assert read["image_id"].tolist() == images["image_id"].tolist()


def test_a_split_of_two_words_is_taken_off(tmp_path, make):
    images = make.images(["my-test-1", "my-test-2"]).assign(path=["b.jpg", "a.jpg"])
    path = written(tmp_path / "r.json", results([1, "2"], category_name=["cat", "dog"]))
    read = read_detections(path, images, make.classes("cat", "dog"))
    assert read["image_id"].tolist() == ["my-test-1", "my-test-2"]


@pytest.mark.parametrize(
    ("ids", "paths"),
    [
        (["a", "b"], ["1.jpg", "2.jpg"]),
        (["card-1", "card-2"], ["x/card-1.jpg", "x/card-2.jpg"]),
        (["train-1", "test-2"], ["1.jpg", "2.jpg"]),
    ],
)
@pytest.mark.parametrize("numbers", [(1, 2), ("1", "2"), ("01", "02"), (1.0, 2.0)])
def test_numbers_are_never_file_names(tmp_path, make, ids, paths, numbers):
    images = make.images(ids).assign(path=paths)
    path = written(tmp_path / "r.json", results(numbers, category_name=["cat", "dog"]))
    with pytest.raises(DataError, match="whole numbers are ids, never file names"):
        read_detections(path, images, make.classes("cat", "dog"))


def test_a_split_without_images_is_said(tmp_path, known):
    path = written(tmp_path / "r.json", results(category_name=["cat", "dog"]))
    with pytest.raises(DataError, match=r"split has no images.*evaluate_files\.dataset"):
        read_detections(path, known[0].iloc[:0], known[1])


def test_shares_taken_for_pixels_are_refused(tmp_path, known):
    found = [result("1", [0.1, 0.2, 0.3, n / 10], 0.5, category_name="cat") for n in range(1, 6)]
    with pytest.raises(DataError, match=r"all 5 boxes lie within 0\.\.1.*must be pixels"):
        read_detections(written(tmp_path / "r.json", found), *known)
    found[0]["bbox"] = [0, 0, 5, 5]
    assert len(read_detections(written(tmp_path / "r.json", found), *known)) == 5


CSVS = {
    "ours": "image_id,class_name,x1,y1,x2,y2,score\n1,cat,1,2,11,22,.5\n0003,dog,0,0,4,4,.25\n",
    "other order and names": "Confidence,XMin,xmax,ymin,YMax,label,img_id\n"
    ".5,1,11,2,22,cat,1\n.25,0,4,0,4,dog,0003\n",
    "x y w h": "image,x,y,w,h,class,prob\n1,1,2,10,20,cat,.5\n0003,0,0,4,4,dog,.25\n",
    "semicolons": "image_id;class_name;x1;y1;x2;y2;score\n"
    "1;cat;1;2;11;22;.5\n0003;dog;0;0;4;4;.25\n",
    "more columns": "n,image_id,class_name,x1,y1,x2,y2,score\n"
    "0,1,cat,1,2,11,22,.5\n1,0003,dog,0,0,4,4,.25\n",
    "paths": "path,class_name,x1,y1,x2,y2,score\n"
    "train/a.jpg,cat,1,2,11,22,.5\nc d.PNG,dog,0,0,4,4,.25\n",
    "foreign paths": "file,class_name,x1,y1,x2,y2,score\n"
    "C:\\data\\a.jpg,cat,1,2,11,22,.5\nC:\\data\\c d.PNG,dog,0,0,4,4,.25\n",
    "stems": "image,class_name,x1,y1,x2,y2,score\na,cat,1,2,11,22,.5\nc d,dog,0,0,4,4,.25\n",
    "ids a spreadsheet has seen": "image_id,class_name,x1,y1,x2,y2,score\n"
    "1,cat,1,2,11,22,.5\n3,dog,0,0,4,4,.25\n",
}


@pytest.mark.parametrize("text", CSVS.values(), ids=CSVS.keys())
def test_csv(tmp_path, known, text):
    assert rows(read_detections(written(tmp_path / "d.csv", text), *known)) == EXPECTED


def test_csv_with_a_mapping_of_columns(tmp_path, known):
    text = "bild,was,x1,y1,x2,y2,score\n1,cat,1,2,11,22,.5\n0003,dog,0,0,4,4,.25\n"
    path = written(tmp_path / "d.csv", text)
    columns = {"image_id": "bild", "class_name": "was"}
    assert rows(read_detections(path, *known, columns=columns)) == EXPECTED
    with pytest.raises(DataError, match="no column 'Bild'; it has bild, was"):
        read_detections(path, *known, columns={"image_id": "Bild"})


def test_parquet_of_our_own_table(tmp_path, known):
    table = DETECTIONS.make(pd.DataFrame(EXPECTED, columns=list(DETECTIONS.columns)))
    table.to_parquet(tmp_path / "d.parquet")
    assert rows(read_detections(tmp_path / "d.parquet", *known)) == EXPECTED


@pytest.mark.parametrize(
    "name, text", [("d.json", "[]"), ("d.csv", "image_id,class_name,x1,y1,x2,y2,score\n")]
)
def test_no_detections_are_an_empty_table(tmp_path, known, name, text, caplog):
    assert rows(read_detections(written(tmp_path / name, text), *known)) == []
    assert "no detections" in caplog.text


def test_all_mistakes_come_at_once(tmp_path, known):
    broken = [
        result("9", [0, 0, 4, 4], 0.5, category_name="cat"),
        result("8", [0, 0, -4, 4], 0.5, category_name="Dog"),
        result("1", [0, 0, 4, None], 80, category_name="cow"),
    ]
    with pytest.raises(DataError) as error:
        read_detections(written(tmp_path / "r.json", broken), *known)
    for part in (
        "2 image(s) are not in the data set: '9', '8'", "'Dog', 'cow'; did you mean 'dog'?",
        "1 row(s) have a box or score that is no number; first: row 3",
        "1 row(s) have x2 below x1", "1 row(s) have a score outside 0..1",
    ):  # fmt: skip
        assert part in str(error.value)


@pytest.mark.parametrize(
    "name, text, says",
    [
        ("d.json", "{", "cannot be read"),
        ("d.json", '{"x": 1}', "expected a list of detections"),
        ("d.json", "[1, 2]", "expected a list of detections"),
        ("d.json", '[{"image_id": 1, "bbox": [1, 2, 3], "score": 1}]', "not four numbers"),
        ("d.csv", "a,b\n1,2\n", "no image_id"),
        ("d.csv", "", "cannot be read"),
        ("d.txt", "1 2 3", "none of .json, .csv, .parquet"),
    ],
)
def test_what_is_no_file_of_detections(tmp_path, known, name, text, says):
    with pytest.raises(DataError, match=says) as error:
        read_detections(written(tmp_path / name, text), *known)
    assert name in str(error.value)


def test_a_missing_file_is_named(tmp_path, known):
    with pytest.raises(DataError, match=r"gone\.json: there is no such file"):
        read_detections(tmp_path / "gone.json", *known)


def test_cocoapis_own_results_file_gives_the_published_numbers(coco100):
    images, boxes, detections, classes = coco100.tables
    mapping = {str(number): name for number, name in coco100.names.items()}
    found = read_detections(coco100.found_file, images, classes, categories=mapping)
    pd.testing.assert_frame_equal(found, detections, check_exact=True)
    scores = coco.score(images, boxes, found, classes, dataset="test")
    assert scores["value"].head(12).tolist() == [100 * v for v in coco100.published.values()]


def test_what_we_write_reads_back(tmp_path, known, make):
    table = make.detections(*EXPECTED)
    path = written(tmp_path / "out.json", coco_results(table, known[1]))
    first, second = json.loads(path.read_text())
    assert first == {
        "image_id": 1, "category_id": 1, "category_name": "cat", "bbox": [1, 2, 10, 20],
        "score": 0.5,
    }  # fmt: skip
    assert second["image_id"] == "0003" and second["category_id"] == 2
    assert rows(read_detections(path, *known)) == EXPECTED
    assert coco_results(table.iloc[:0], known[1]) == []


def test_file_names_that_two_images_share_are_not_guessed(tmp_path, make):
    images = make.images(["1", "2"]).assign(path=["a/x.jpg", "b/x.jpg"])
    text = "file,class_name,x1,y1,x2,y2,score\n{},cat,1,2,11,22,.5\n"
    whole = written(tmp_path / "whole.csv", text.format("b/x.jpg"))
    assert rows(read_detections(whole, images, make.classes("cat")))[0][0] == "2"
    bare = written(tmp_path / "bare.csv", text.format("x.jpg"))
    with pytest.raises(DataError, match=r"1 image.*are not in the data set: 'x.jpg'"):
        read_detections(bare, images, make.classes("cat"))


@pytest.mark.parametrize("name", ["NA", "None", "nan", "a,b", 'say "x"', "猫", "true"])
def test_class_names_of_every_kind_survive_csv(tmp_path, make, name):
    table = make.detections(("1", name, 1, 2, 11, 22, 0.5))
    table.to_csv(tmp_path / "d.csv", index=False)
    found = read_detections(tmp_path / "d.csv", make.images(["1"]), make.classes(name))
    assert rows(found) == rows(table)
