"""The report's page: everything is on it, in words and in a browser."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from detpipe import __version__
from detpipe.core.tables import SCORES, VERDICT
from detpipe.evaluate import coco, errors, gallery, report
from detpipe.evaluate.config import ReportConfig
from detpipe.evaluate.page import WORST, Report, page
from tests.browser import chromium, column, opened

ODD = ['<cat> & "dog\'s"', "$x$_1", "猫"]
CONFIG = ReportConfig(samples=20, pictures=2)


def read(path):
    return np.asarray(Image.open(path).convert("RGB"))


def content(tables, root, **changes):
    """What a report on a split of these tables holds, ``test`` unless the images say otherwise."""
    images, boxes, detections, classes = tables
    splits = images["split"].unique().tolist()
    parts = report.parts(images, boxes, [(splits, detections)])
    diagnosis = report.diagnose(parts, classes, CONFIG, max_detections=100)
    drawn = {part.dataset: Image.new("RGB", (700, 300)) for part in parts}  # quicker than figures
    scores = [SCORES.empty()]
    tiles = {}
    for dataset, *own in parts:
        scores.append(coco.score(*own, classes, dataset=dataset))
        found = errors.kinds(*own, classes, score_threshold=0.5)
        ranking = diagnosis.per_image[diagnosis.per_image["dataset"] == dataset]
        tiles[dataset] = gallery.tiles(*own[:2], found, ranking, root, read=read, count=2)
    given = {"scores": pd.concat(scores), "diagnosis": diagnosis, "tiles": tiles, **changes}
    what = ("precision_recall", "scores", "calibration", "slices")
    curves = {f"{dataset}_{name}": drawn[dataset] for dataset in drawn for name in what}
    return Report(
        parts=parts, curves=curves, confusion=drawn, errors=drawn,
        config=CONFIG, max_detections=100, **given,
    )  # fmt: skip


@pytest.fixture(scope="module")
def tables(make, tmp_path_factory):
    """Two data sets of three images with three classes; some boxes found, some not."""
    root = tmp_path_factory.mktemp("pictures")
    ids = [str(i) for i in range(6)]
    images = make.images(ids).assign(split=["val"] * 3 + ["test"] * 3)
    for path in images["path"]:
        Image.new("RGB", (200, 100), (90, 90, 90)).save(root / path)
    boxes = make.boxes(
        *((i, name, 60 * k, 0, 60 * k + 50, 50) for i in ids for k, name in enumerate(ODD))
    )
    found = boxes[["image_id", "class_name", "x1", "y1", "x2", "y2"]]
    found = found.assign(score=np.linspace(0.3, 0.9, len(found))).iloc[::2]
    return make.tables(images, boxes, found.reset_index(drop=True), make.classes(*ODD)), root


@pytest.fixture(scope="module")
def whole(tables):
    return content(*tables)


def text_of(section, text):
    start = text.index(f'<section id="{section}">')
    return text[start : text.index("</section>", start)]


def headings(text, level):
    return re.findall(rf"<h{level}>([^<]*)</h{level}>", text)


def test_every_section_is_there_in_its_order(whole):
    text = page(whole, title="Evaluation of <me>")
    assert headings(text, 1) == ["Evaluation of &lt;me&gt;"]
    assert headings(text, 2) == [
        "val", "test", "Overview", "Classes", "Errors", "Confusion", "Curves", "Calibration",
        "Slices", "Gallery", "Images", "How it was made",
    ]  # fmt: skip
    assert headings(text, 3) == ["val", "test"] * 7
    assert {"worst", "best", "random", "missed"} <= set(headings(text, 4))
    assert "nan" not in re.sub(r"base64,[^\"]*", "", text)


def test_the_headline_is_the_score_with_its_interval(whole):
    text = page(whole, title="t")
    row = whole.diagnosis.intervals.iloc[0]
    for word in (f"<strong>{row['value']:.1f}<", f"{row['low']:.1f} to {row['high']:.1f}"):
        assert word in text
    assert "95% of 20 bootstrap samples" in text


@pytest.mark.parametrize(
    "ok, words, kind",
    [([True, True], "2 of 2", "good"), ([True, False], "1 of 2", "bad"), ([], "Nothing", "soft")],
)
def test_the_verdict_is_told(whole, ok, words, kind):
    row = {
        "dataset": "test", "task": "bbox", "metric": "AP", "class_name": "", "baseline": "",
        "expected": 40.0, "tolerance": 1.0, "min": 39.0, "max": 41.0, "actual": 40.5,
        "reason": "<why>",
    }  # fmt: skip
    verdict = VERDICT.make([{**row, "ok": one} for one in ok])
    text = page(replace(whole, verdict=verdict), title="t")
    assert re.search(rf'<p class="{kind}">{words}', text)
    assert ("&lt;why&gt;" in text) == bool(ok)
    assert "expected results" not in page(whole, title="t")


def test_misses_come_first_and_of_many_rows_those_that_are_met_are_folded(whole):
    row = dict.fromkeys(("expected", "tolerance", "min", "max", "actual"), 1.0)
    row |= {"dataset": "test", "task": "bbox", "class_name": "", "baseline": "", "reason": ""}

    def shown(*ok):
        rows = [{**row, "metric": f"m{i}", "ok": one} for i, one in enumerate(ok)]
        text = page(replace(whole, verdict=VERDICT.make(rows)), title="t")
        text = text[text.index("expected results") : text.index("<nav>")]
        return re.findall(r"<td>(m\d+)</td>|(<details>|</details>)", text)

    assert shown(True, False, True) == [("m1", ""), ("m0", ""), ("m2", "")]
    many = [name or tag for name, tag in shown(*[True] * 10, False)]
    assert many == ["m10", "<details>", *(f"m{i}" for i in range(10)), "</details>"]
    assert shown(*[True] * 11)[0] == ("", "<details>")
    assert "<details>" not in [tag for _, tag in shown(*[False] * 11)]


def test_classes_have_their_objects_scores_and_thresholds(tables, make):
    images, boxes, found, classes = tables[0]
    classes = make.classes(*ODD, "never seen")
    shown = content((images, boxes, found, classes), tables[1])
    text = page(shown, title="t")
    section = text[text.index('<section id="classes">') : text.index('<section id="errors">')]
    rows = [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in section.split("<tr>")[2:]]
    assert [row[:3] for row in rows[3:5]] == [["val", "never seen", "0"], ["test", rows[0][1], "3"]]
    best = shown.diagnosis.thresholds.set_index(["dataset", "class_name"]).loc[("val", "猫")]
    assert rows[2][-4:] == [
        f"{best[c]:.2f}" for c in ("score_threshold", "precision", "recall", "f1")
    ]
    assert rows[3][3:] == ["–"] * len(rows[3][3:])


def test_how_it_was_made_names_weights_limits_and_times(whole):
    timing = pd.DataFrame(
        {"part": ["data", "model"], "ms_per_image": [1.25, 33.0], "images": 2, "dataset": "val"}
    )
    made = {"weights": "0123abcd", "step": 70, "<new>": "a & b"}
    last = text_of("how-it-was-made", page(replace(whole, timing=timing, made=made), title="t"))
    for words in (
        "0123abcd", "max_detections</td><td>100", "(best F1)", "33.00", "20, seed 0",
        "step</td><td>70", "&lt;new&gt;</td><td>a &amp; b", f"detpipe</td><td>{__version__}",
    ):  # fmt: skip
        assert words in last
    before, (date,) = datetime.now(UTC), re.findall("date</td><td>(.*) UTC<", last)
    assert timedelta(0) <= before - datetime.fromisoformat(f"{date}+00:00") < timedelta(minutes=2)


@pytest.mark.parametrize(
    "val, test, says",
    [
        (2, 2, "The first batches, which take longer, are left out."),
        (3, 3, "The first batches, which take longer, are counted too."),
        (2, 3, "The first batches of test, which take longer, are counted too."),
    ],
)
def test_whether_the_first_batches_are_timed_is_told_as_it_is(whole, val, test, says):
    timing = pd.DataFrame(
        {"part": "model", "ms_per_image": 33.0, "images": [val, test], "dataset": ["val", "test"]}
    )
    assert says in page(replace(whole, timing=timing), title="t")


def test_the_overview_has_a_row_a_metric(whole):
    section = text_of("overview", page(whole, title="t"))
    heads = re.findall(r"<button[^>]*>([^<]*)", section)
    assert heads == ["metric", "val", "test"]
    assert section.count("<tr>") == 1 + 12


def test_that_the_best_threshold_is_chosen_on_the_same_images_is_said(whole):
    text = page(whole, title="t")
    for name in ("classes", "confusion", "curves"):
        assert "on other images" in text_of(name, text)
    given = replace(whole, config=ReportConfig(samples=20, score_threshold=0.5))
    assert "on other images" not in text_of("confusion", page(given, title="t"))


def test_pictures_that_need_no_caption_have_their_words_as_alt_alone(whole):
    text = page(whole, title="t")
    for words in ("errors", "confusion matrix", "calibration"):
        assert text.count(f'alt="{words}"') == 2
        assert f"<figcaption>{words}<" not in text
    assert text.count("<figcaption>precision over recall<") == 2


def test_without_images_the_page_says_so(tables):
    images, boxes, found, classes = tables[0]
    text = page(content((images[:0], boxes[:0], found[:0], classes), tables[1]), title="t")
    assert "No split that is evaluated has images" in text and headings(text, 2) == []


@pytest.mark.parametrize("lacking", ["boxes", "detections", "both"])
def test_without_truth_or_detections_the_page_says_so(tables, lacking):
    images, boxes, found, classes = tables[0]
    boxes = boxes if lacking == "detections" else boxes[:0]
    found = found if lacking == "boxes" else found[:0]
    text = page(content((images, boxes, found, classes), tables[1]), title="t")
    assert text.count("There is no ground truth in it") == (0 if lacking == "detections" else 2)
    assert text.count("Nothing was detected in it") == (2 if lacking == "detections" else 0)
    assert text.count("There are no detections.") == (0 if lacking == "boxes" else 2)


def test_no_pictures_no_gallery(whole):
    text = page(replace(whole, tiles={}), title="t")
    assert "Gallery" not in text


def test_drawings_may_come_from_files(whole):
    renamed = {f"{name}.png": picture for name, picture in whole.confusion.items()}
    text = page(replace(whole, confusion=renamed), title="t")
    assert text.count('alt="confusion matrix"') == 2


def test_the_table_of_images_is_cut(whole):
    ranking = whole.diagnosis.per_image
    long = pd.concat([ranking[ranking["dataset"] == "val"]] * WORST)
    shown = replace(whole, diagnosis=whole.diagnosis._replace(per_image=long))
    text = page(shown, title="t")
    section = text[text.index('<section id="images">') : text.index('<section id="how')]
    assert section.count("<tr>") == WORST + 1 + 1  # no rows of test


def test_it_opens_and_sorts_in_a_browser(whole, tmp_path):
    text = page(whole, title="Evaluation")
    assert len(text) < 3e6
    with chromium() as browser:
        shown = opened(browser, text, tmp_path)
        words = shown.execute_script("return document.body.innerText")
        assert all(name in words for name in ODD)
        count = shown.execute_script("return document.images.length")
        assert count == text.count("<img") > 16
        first = shown.find_element("css selector", "#classes table")
        heads = first.find_elements("css selector", "th button")
        place = [head.text for head in heads].index("best threshold")
        for _ in range(2):
            heads[place].click()
        best = column(shown, place, "#classes table")
        assert best == sorted(best, key=float, reverse=True) and len(set(best)) == 6
