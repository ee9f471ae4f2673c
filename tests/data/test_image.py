from __future__ import annotations

import io
import json
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps

from detpipe.core.errors import DataError
from detpipe.data.image import load_image, load_sized, read_info, upright_size


@pytest.fixture
def pixels() -> np.ndarray:
    ramp = np.mgrid[0:40, 0:60].sum(0)[..., None] + np.array([0, 40, 90])
    noise = np.random.default_rng(0).integers(0, 40, (40, 60, 3))
    return (ramp + noise).clip(0, 255).astype(np.uint8)


def by_pillow(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        return np.array(ImageOps.exif_transpose(picture).convert("RGB"))


@pytest.mark.parametrize("ending", ["jpg", "png", "tiff", "webp", "bmp", "gif"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_pixels_equal_pillows(tmp_path: Path, pixels: np.ndarray, ending: str, mode: str) -> None:
    path = tmp_path / f"picture.{ending}"
    Image.fromarray(pixels).convert(mode).save(path)
    found = load_image(path)
    assert found.dtype == np.uint8
    assert found.flags.c_contiguous
    assert found.flags.writeable
    np.testing.assert_array_equal(found, by_pillow(path))


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("progressive", [False, True])
def test_jpeg_of_every_kind_equals_pillows(
    tmp_path: Path, pixels: np.ndarray, subsampling: int, progressive: bool
) -> None:
    path = tmp_path / "picture.jpg"
    Image.fromarray(pixels[:39, :53]).save(path, subsampling=subsampling, progressive=progressive)
    np.testing.assert_array_equal(load_image(path), by_pillow(path))


@pytest.mark.parametrize("folder", ["bccd_voc", "chess_coco_roboflow", "cones_yolo"])
def test_real_jpegs_equal_pillows(shared_data: Path, folder: str) -> None:
    paths = sorted((shared_data / folder).rglob("*.jp*g"))[::40]
    assert paths
    for path in paths:
        np.testing.assert_array_equal(load_image(path), by_pillow(path), err_msg=str(path))


@pytest.mark.parametrize("ending", ["jpg", "png", "tiff", "webp"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(
    tmp_path: Path, pixels: np.ndarray, ending: str, orientation: int
) -> None:
    path = tmp_path / f"picture.{ending}"
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(path, exif=exif)
    truth = by_pillow(path)
    assert truth.shape[:2] == ((60, 40) if orientation >= 5 else (40, 60))
    np.testing.assert_array_equal(load_image(path), truth)
    assert upright_size(path) == truth.shape[:2]
    shrunk, original = load_sized(path, size=lambda h, w: (h // 2, w // 2))
    assert original == truth.shape[:2]
    half = np.asarray(Image.fromarray(truth).resize((truth.shape[1] // 2, truth.shape[0] // 2)))
    assert shrunk.shape == half.shape
    assert np.abs(shrunk.astype(int) - half.astype(int)).mean() < 6


def test_big_endian_exif_and_segments_before_it(tmp_path: Path, pixels: np.ndarray) -> None:
    exif = Image.Exif()
    exif.endian = ">"
    exif[0x010E] = "a description, so that the orientation is not the first entry"
    exif[0x0112] = 6
    path = tmp_path / "picture.jpg"
    Image.fromarray(pixels).save(path, exif=exif, comment="a comment", dpi=(72, 72))
    assert load_image(path).shape == (60, 40, 3)
    np.testing.assert_array_equal(load_image(path), by_pillow(path))


def test_png_with_exif_after_its_pixels(tmp_path: Path, pixels: np.ndarray) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    path = tmp_path / "picture.png"
    Image.fromarray(pixels).save(path)
    block = exif.tobytes().removeprefix(b"Exif\0\0")
    chunk = len(block).to_bytes(4, "big") + b"eXIf" + block
    chunk += zlib.crc32(chunk[4:]).to_bytes(4, "big")
    data = path.read_bytes()
    path.write_bytes(data[:-12] + chunk + data[-12:])
    assert upright_size(path) == (60, 40)
    np.testing.assert_array_equal(load_image(path), by_pillow(path))


def test_damaged_exif_is_taken_as_upright(tmp_path: Path, pixels: np.ndarray) -> None:
    path = tmp_path / "picture.jpg"
    Image.fromarray(pixels).save(path, exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    assert load_image(path).shape == (40, 60, 3)


def test_real_phone_photos_are_upright(shared_data: Path) -> None:
    """Their COCO file gives sizes of the upright picture; three of four are stored turned."""
    root = shared_data / "screws_coco_cvat"
    records = json.loads((root / "annotations" / "instances_test.json").read_text())["images"]
    said = {Path(record["file_name"]).name: record for record in records}
    paths = sorted((root / "images").glob("*.jpg"))
    assert [read_info(path).orientation for path in paths].count(6) == 3
    for path in paths:
        record = said[path.name]
        assert upright_size(path) == (record["height"], record["width"])
        with Image.open(path) as picture:
            picture.draft("RGB", (picture.width // 8, picture.height // 8))
            truth = np.asarray(ImageOps.exif_transpose(picture))
        found, original = load_sized(path, size=lambda height, width: (height // 8, width // 8))
        np.testing.assert_array_equal(found, truth)
        assert original == upright_size(path)


# --- colour modes --------------------------------------------------------------------------------


def test_cmyk_and_palette_are_converted(tmp_path: Path, pixels: np.ndarray) -> None:
    Image.fromarray(pixels).convert("CMYK").save(tmp_path / "cmyk.jpg")
    Image.fromarray(pixels).quantize(16).save(tmp_path / "palette.png")
    Image.fromarray(pixels).convert("1").save(tmp_path / "bits.png")
    for path in sorted(tmp_path.iterdir()):
        np.testing.assert_array_equal(load_image(path), by_pillow(path), err_msg=path.name)


@pytest.mark.parametrize("ending", ["png", "webp", "tiff"])
def test_alpha_is_laid_over_white(tmp_path: Path, ending: str) -> None:
    colours = np.zeros((2, 3, 4), np.uint8)
    colours[..., 0] = 200
    colours[0, :, 3] = [0, 128, 255]
    path = tmp_path / f"alpha.{ending}"
    Image.fromarray(colours).save(
        path, **({"lossless": True, "exact": True} if ending == "webp" else {})
    )
    share = np.array([0, 128, 255])[:, None] / 255
    expected = np.array([200, 0, 0]) * share + 255 * (1 - share)
    np.testing.assert_allclose(load_image(path)[0], expected, atol=1)
    assert (load_image(path)[1] == 255).all()


def test_transparent_palette_colour_becomes_white(tmp_path: Path) -> None:
    picture = Image.new("P", (4, 4), 1)
    picture.putpalette([10, 20, 30, 200, 0, 0])
    picture.putpixel((0, 0), 0)
    picture.save(tmp_path / "p.png", transparency=0)
    found = load_image(tmp_path / "p.png")
    assert found[0, 0].tolist() == [255, 255, 255]
    assert found[1, 1].tolist() == [200, 0, 0]


@pytest.mark.parametrize("ending", ["png", "tiff"])
def test_16_bit_grey_is_scaled_by_its_own_range(tmp_path: Path, ending: str) -> None:
    values = np.linspace(1000, 5000, 12).reshape(3, 4).astype(np.uint16)
    path = tmp_path / f"deep.{ending}"
    Image.fromarray(values).save(path)
    expected = np.rint((values - 1000.0) * 255 / 4000)
    np.testing.assert_array_equal(load_image(path), np.repeat(expected[..., None], 3, 2))
    assert read_info(path).bits == 16


@pytest.mark.parametrize("ending", ["png", "tiff"])
def test_16_bit_colour_is_scaled_by_its_own_range(tmp_path: Path, ending: str) -> None:
    values = np.random.default_rng(0).integers(100, 4096, (5, 6, 3)).astype(np.uint16)
    path = tmp_path / f"deep.{ending}"
    cv2.imwrite(str(path), values[..., ::-1])
    low, high = values.min(), values.max()
    expected = np.rint((values.astype(float) - low) * 255 / (high - low))
    np.testing.assert_array_equal(load_image(path), expected)
    assert read_info(path).bits == 16


def test_float_tiff_with_nan(tmp_path: Path) -> None:
    values = np.array([[0.0, 0.5], [np.nan, 1.0]], np.float32)
    Image.fromarray(values).save(tmp_path / "f.tiff")
    assert load_image(tmp_path / "f.tiff")[..., 0].tolist() == [[0, 128], [0, 255]]


def test_flat_16_bit_picture_does_not_divide_by_zero(tmp_path: Path) -> None:
    Image.fromarray(np.full((3, 3), 7, np.uint16)).save(tmp_path / "flat.png")
    assert (load_image(tmp_path / "flat.png") == 7).all()


def test_mpo_gives_its_first_picture(tmp_path: Path, pixels: np.ndarray) -> None:
    path = tmp_path / "stereo.mpo"
    first, second = Image.fromarray(pixels), Image.fromarray(255 - pixels)
    first.save(path, save_all=True, append_images=[second])
    np.testing.assert_array_equal(load_image(path), by_pillow(path))


# --- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "size", [(240, 320), (300, 400), (320, 320), (480, 640), (600, 900), (60, 700)]
)
def test_resized_jpeg_is_close_to_pillows_resize(shared_data: Path, size: tuple[int, int]) -> None:
    path = sorted((shared_data / "bccd_voc").rglob("*.jpg"))[0]
    found = load_image(path, size=size)
    assert found.shape == (*size, 3)
    with Image.open(path) as picture:
        truth = np.asarray(
            picture.resize(
                size[::-1], Image.Resampling.BOX if size[0] < 480 else Image.Resampling.BILINEAR
            )
        )
    assert np.abs(found.astype(int) - truth).mean() < 2.5


# --- what cannot be read -------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["jpg", "png"])
@pytest.mark.parametrize("size", [None, (10, 10)])
def test_truncated_picture_names_the_file(
    tmp_path: Path, pixels: np.ndarray, ending: str, size: tuple[int, int] | None
) -> None:
    buffer = io.BytesIO()
    large = np.tile(pixels, (4, 4, 1))
    Image.fromarray(large).save(buffer, "JPEG" if ending == "jpg" else "PNG")
    path = tmp_path / f"half of é 猫.{ending}"
    path.write_bytes(buffer.getvalue()[: len(buffer.getvalue()) // 2])
    assert upright_size(path) == (160, 240)  # the header is whole
    with pytest.raises(DataError, match=r"half of é 猫.*truncated"):
        load_image(path, size=size)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "0 bytes"),
        (b"<html>not found</html>", "no picture"),
        (b"\xff\xd8\xff", "no picture|truncated"),
    ],
)
def test_no_picture_names_the_file_and_why(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "bad.jpg"
    path.write_bytes(content)
    for read in (load_image, upright_size):
        with pytest.raises(DataError, match=rf"bad\.jpg.*({reason})"):
            read(path)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    for read in (load_image, upright_size):
        with pytest.raises(DataError, match=r"gone\.jpg: there is no such file"):
            read(tmp_path / "gone.jpg")
        with pytest.raises(DataError, match="this is a folder"):
            read(tmp_path)


def test_jpeg_with_rubbish_after_its_end_is_read(tmp_path: Path, pixels: np.ndarray) -> None:
    path = tmp_path / "picture.jpg"
    Image.fromarray(pixels).save(path)
    truth = by_pillow(path)
    path.write_bytes(path.read_bytes() + b"rubbish" * 100)
    np.testing.assert_array_equal(load_image(path), truth)
