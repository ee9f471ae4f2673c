"""Pages: what is in them is what was given, in any browser, without a network."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from PIL import Image

from detpipe.core.page import contents, facts, grid, html, paragraph, picture, section, table, text
from tests.browser import chromium, column, opened

ODD = ["<b>bold</b>", "a & b", "say \"x\" & 'y'", "</script><script>alert(1)</script>", "猫"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


def pixels(page: str) -> list[Image.Image]:
    found = re.findall(r'src="data:image/\w+;base64,([^"]+)"', page)
    return [Image.open(io.BytesIO(base64.b64decode(data))) for data in found]


def test_numbers_have_two_decimals_and_the_missing_ones_a_dash() -> None:
    frame = pd.DataFrame({"name": ["a", None], "AP": [12.3456, np.nan], "count": [3, 1200]})
    found = re.findall(r"<td[^>]*>([^<]*)</td>", table(frame))
    assert found == ["a", "12.35", "3", "–", "–", "1200"]
    assert "<td" not in table(frame.iloc[:0]) and "AP" in table(frame.iloc[:0])
    assert "<table" in table(pd.DataFrame())


def test_nothing_is_minus_zero_and_bools_are_words() -> None:
    frame = pd.DataFrame({"change": [-0.001], "ok": [True], "AP": pd.array([1], dtype="Int64")})
    assert re.findall(r"<td[^>]*>([^<]*)</td>", table(frame)) == ["0.00", "yes", "1"]


def test_names_that_repeat_are_columns_of_their_own() -> None:
    frame = pd.DataFrame([[1, 2]], columns=["a", "a"])
    assert re.findall(r"<td[^>]*>([^<]*)</td>", table(frame, sortable=False)) == ["1", "2"]
    assert "<button" not in table(frame, sortable=False)


def test_lone_surrogates_do_not_stop_a_page() -> None:
    frame = pd.DataFrame({"name": pd.Series(["c\udcff"], dtype="object")})
    page = html("a\udcff", [paragraph("b\udcff"), table(frame)])
    assert [f"{letter}?" in page for letter in "abc"] == [True] * 3
    page.encode("utf-8")
    assert text("<\udcff>") == "&lt;?&gt;"


def test_pictures_are_in_the_page_as_large_as_they_are() -> None:
    photo = picture(Image.new("RGBA", (30, 20), (255, 0, 0, 255)), "red & round")
    figure = Figure(figsize=(2, 1))
    figure.subplots().plot([1, 2])
    one, two = pixels(photo + picture(figure, "a line", "png"))
    assert (one.format, one.size, two.format, two.size) == ("JPEG", (30, 20), "PNG", (200, 100))
    assert np.abs(np.asarray(one).astype(int) - (255, 0, 0)).max() < 5
    assert 'alt="red &amp; round"' in photo


def test_a_page_names_no_address() -> None:
    page = html("t", [section("S", [grid([picture(Image.new("L", (9, 9)), "c")])])])
    assert not re.search(r"(src|href)=\"(?!data:|#)|url\(|@import|https?:", page)


def test_it_opens_and_odd_names_are_seen_as_they_are(browser: Any, tmp_path: Path) -> None:
    frame = pd.DataFrame({name: [name] for name in ODD})
    parts = [
        contents(["A & B"]), facts([(ODD[0], ODD[1], ODD[2])]),
        section("A & B", [table(frame), picture(Image.new("RGB", (2000, 9)), ODD[3])]),
    ]  # fmt: skip
    page = opened(browser, html(ODD[0], parts), tmp_path)
    assert page.title == ODD[0]
    shown = page.execute_script("return document.body.innerText")
    assert all(shown.count(name) >= 2 for name in ODD)
    assert page.execute_script("return document.scripts.length") == 1
    link = page.find_element("css selector", "nav a")
    target = link.get_attribute("href").partition("#")[2]
    assert page.find_element("id", target).tag_name == "section"


@pytest.fixture
def sortable(browser: Any, tmp_path: Path) -> Any:
    frame = pd.DataFrame(
        {"class": ["b10", "b9", "Á", "c"], "AP": [9.001, 100.0, np.nan, 9.004], "n": [4, 1, 3, 2]}
    )
    return opened(browser, html("t", [table(frame)]), tmp_path)


def press(page: Any, place: int) -> None:
    page.find_elements("css selector", "th button")[place].click()


def test_a_click_sorts_numbers_by_size_and_leaves_the_missing_last(sortable: Any) -> None:
    press(sortable, 1)
    assert column(sortable, 2) == ["4", "2", "1", "3"]  # by all digits, not as text
    press(sortable, 1)
    assert column(sortable, 2) == ["1", "2", "4", "3"]


def test_a_click_sorts_text_as_people_do(sortable: Any) -> None:
    press(sortable, 0)
    assert column(sortable, 0) == ["Á", "b9", "b10", "c"]
    press(sortable, 0)
    assert column(sortable, 0) == ["c", "b10", "b9", "Á"]


def test_headers_say_how_it_is_sorted_and_obey_the_keyboard(sortable: Any) -> None:
    heads = sortable.find_elements("css selector", "th")
    button = sortable.find_elements("css selector", "th button")[2]
    button.send_keys("\ue007")  # Enter
    assert column(sortable, 2) == ["1", "2", "3", "4"]
    assert [h.get_attribute("aria-sort") for h in heads] == ["none", "none", "ascending"]
    button.send_keys(" ")
    assert column(sortable, 2) == ["4", "3", "2", "1"]
    press(sortable, 0)
    assert [h.get_attribute("aria-sort") for h in heads] == ["ascending", "none", "none"]


def test_numbers_stand_to_the_right(sortable: Any) -> None:
    script = "return [...document.querySelectorAll('td')].map(c => getComputedStyle(c).textAlign)"
    assert sortable.execute_script(script)[:3] == ["left", "right", "right"]


def test_a_wide_table_scrolls_in_its_own_frame(browser: Any, tmp_path: Path) -> None:
    frame = pd.DataFrame({f"column {i}": ["x" * 40] for i in range(40)})
    opened(browser, html("t", [table(frame), paragraph("y" * 500)]), tmp_path)
