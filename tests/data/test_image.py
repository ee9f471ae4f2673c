from __future__ import annotations

import base64
import io
import json
import struct
import sys
import types
import warnings
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image, ImageCms, ImageOps

from detpipe.core.errors import DataError
from detpipe.data.image import load_grey, load_image, load_sized, read_info, upright_size


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


@pytest.mark.parametrize("scale", [0.9, 0.75, 0.6, 0.5, 0.4, 0.2, 0.1])
def test_a_shrunk_picture_is_close_to_pillows_antialiased_one(
    shared_data: Path, tmp_path: Path, scale: float
) -> None:
    path = tmp_path / "picture.png"
    with Image.open(sorted((shared_data / "cones_yolo").rglob("*.jpg"))[0]) as picture:
        picture.save(path)
        size = round(picture.height * scale), round(picture.width * scale)
        truth = np.asarray(picture.resize(size[::-1], Image.Resampling.BILINEAR))
    assert np.abs(load_image(path, size=size).astype(int) - truth).mean() < 1


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


# --- kinds of files ------------------------------------------------------------------------------

ARITHMETIC = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABQODxIPDRQSEBIXFRQYHjIhHhwcHj0sLiQySUBMS0dARkVQWnNiUFVtVkVG"
    "ZIhlbXd7gYKBTmCNl4x9lnN+gXz/2wBDARUXFx4aHjshITt8U0ZTfHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8"
    "fHx8fHx8fHx8fHx8fHx8fHx8fHz/yQARCAAQABgDASIAAhEBAxEB/8wACgAQEAUBEBEF/9oADAMBAAIRAxEAPwD/AGPf"
    "ukyB1Oa4+MQMViiHtTWHE+YavyCMrzt7uAqz+SS+TaFkMPamSvkI0LyK/wCjy1owMP/Z"
)
"""24 x 16 pixels in arithmetic coding, by libjpeg from a ramp (Pillow cannot write it)."""


def files_of_many_kinds(folder: Path, pixels: np.ndarray) -> None:
    """Everything that Pillow itself can convert to RGB."""
    picture = Image.fromarray(pixels)
    other, palette = ImageOps.invert(picture), picture.quantize(64)
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    cmyk = io.BytesIO()
    picture.convert("CMYK").save(cmyk, "JPEG")
    ycck = bytearray(cmyk.getvalue())
    ycck[ycck.index(b"Adobe") + 11] = 2  # the colour transform: 0 is CMYK, 2 is YCCK
    (folder / "cmyk.jpg").write_bytes(cmyk.getvalue())
    (folder / "ycck.jpg").write_bytes(bytes(ycck))
    (folder / "arithmetic.jpg").write_bytes(ARITHMETIC)
    picture.save(folder / "restart.jpg", restart_marker_blocks=3)
    picture.save(folder / "rgb.jpg", keep_rgb=True)
    picture.save(folder / "profile.jpg", icc_profile=profile)
    picture.save(folder / "profile.png", icc_profile=profile)
    picture.save(folder / "jpeg.png", "JPEG")
    picture.save(folder / "png.jpg", "PNG")
    png = (folder / "png.jpg").read_bytes()
    gamma = b"gAMA" + (20000).to_bytes(4, "big")
    chunk = b"\0\0\0\4" + gamma + zlib.crc32(gamma).to_bytes(4, "big")
    (folder / "gamma.png").write_bytes(png[:33] + chunk + png[33:])
    for name, more in (("film.png", other), ("film.webp", other), ("film.tiff", other),
                       ("film.mpo", other), ("film.gif", other.quantize(64))):  # fmt: skip
        first = palette if name.endswith("gif") else picture
        options = {"lossless": True} if name.endswith("webp") else {}
        first.save(folder / name, save_all=True, append_images=[more], **options)
    for compression in ("tiff_lzw", "tiff_adobe_deflate", "jpeg", "packbits"):
        picture.save(folder / f"{compression}.tiff", compression=compression)
    picture.convert("CMYK").save(folder / "cmyk.tiff")
    picture.convert("YCbCr").save(folder / "ycbcr.tiff")
    for ending in ("bmp", "tiff", "png"):
        palette.save(folder / f"palette.{ending}")
        picture.convert("1").save(folder / f"one.{ending}")
    for ending in ("ppm", "tga", "jp2", "avif"):
        picture.save(folder / f"plain.{ending}")


def test_files_of_many_kinds_equal_pillows(tmp_path: Path, pixels: np.ndarray) -> None:
    files_of_many_kinds(tmp_path, pixels)
    kinds = set()
    for path in sorted(tmp_path.iterdir()):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found, info = load_image(path), read_info(path)
        np.testing.assert_array_equal(found, by_pillow(path), err_msg=path.name)
        assert (info.height, info.width) == found.shape[:2]
        kinds.add((info.format, info.mode))
    assert ("JPEG", "CMYK") in kinds
    assert len(kinds) >= 18


def test_the_arithmetic_jpeg_is_one() -> None:
    assert b"\xff\xc9" in ARITHMETIC
    assert b"\xff\xc4" not in ARITHMETIC  # no Huffman table


def with_transparency(folder: Path, pixels: np.ndarray) -> None:
    picture = Image.fromarray(pixels)
    alpha = Image.fromarray((np.mgrid[0:40, 0:60][1] * 4).astype(np.uint8))
    colours, grey = picture.copy(), picture.convert("L")
    grey.save(folder / "key_grey.png", transparency=grey.getpixel((0, 0)))
    colours.putalpha(alpha)
    grey.putalpha(alpha)
    colours.quantize(32).save(folder / "palette.png")
    grey.save(folder / "grey.png")
    grey.save(folder / "grey.tiff")
    grey.save(folder / "grey.webp", lossless=True)
    picture.save(folder / "key_colour.png", transparency=tuple(pixels[0, 0].tolist()))
    picture.quantize(64).save(folder / "key_palette.gif", transparency=3)


def test_every_kind_of_transparency_is_laid_over_white(tmp_path: Path, pixels: np.ndarray) -> None:
    with_transparency(tmp_path, pixels)
    for path in sorted(tmp_path.iterdir()):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = load_image(path)
        with Image.open(path) as picture:
            values = np.asarray(picture.convert("RGBA")).astype(float)
        colours, share = values[..., :3], values[..., 3:] / 255
        assert share.min() < 1, path.name
        np.testing.assert_allclose(
            found, colours * share + 255 * (1 - share), atol=1, err_msg=path.name
        )


def deep_png(values: np.ndarray, kind: int) -> bytes:
    """A PNG of 16 bits a channel (kind 4: grey and alpha, 6: RGBA), as its standard has it."""

    def chunk(name: bytes, data: bytes) -> bytes:
        head = len(data).to_bytes(4, "big") + name + data
        return head + zlib.crc32(name + data).to_bytes(4, "big")

    height, width = values.shape[:2]
    lines = b"".join(b"\0" + line.astype(">u2").tobytes() for line in values)
    head = struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize(("channels", "kind"), [(2, 4), (4, 6)])
def test_16_bits_with_alpha(tmp_path: Path, channels: int, kind: int) -> None:
    values = np.random.default_rng(0).integers(100, 4096, (5, 6, channels)).astype(np.uint16)
    values[..., -1] = np.linspace(0, 65535, 6).astype(np.uint16)
    (tmp_path / "deep.png").write_bytes(deep_png(values, kind))
    colours, share = values[..., :-1].astype(float), values[..., -1:] / 65535
    scaled = (colours - colours.min()) * 255 / (colours.max() - colours.min())
    expected = np.broadcast_to(scaled * share + 255 * (1 - share), (5, 6, 3))
    np.testing.assert_allclose(load_image(tmp_path / "deep.png"), expected, atol=1)


def test_other_deep_tiffs_are_scaled_by_their_own_range(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(100, 4096, (5, 6))
    expected = np.rint((values - values.min()) * 255.0 / (values.max() - values.min()))
    for kind in (">u2", "i4", "f4"):
        path = tmp_path / f"{kind[1:]}.tiff"
        Image.fromarray(values.astype(kind)).save(path)
        np.testing.assert_array_equal(load_image(path)[..., 1], expected, err_msg=kind)


# --- grey ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["jpg", "png"])
@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_grey_is_the_upright_picture_shrunk(
    tmp_path: Path, pixels: np.ndarray, ending: str, orientation: int
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    large = np.asarray(Image.fromarray(pixels).resize((480, 320), Image.Resampling.BICUBIC))
    path = tmp_path / f"picture.{ending}"
    Image.fromarray(large).save(path, exif=exif)
    found = load_grey(path, at_least=40)
    with Image.open(path) as picture:
        truth = ImageOps.exif_transpose(picture).convert("L")
    assert found.damage == ""
    assert max(found.pixels.shape) == (480 if ending == "png" else 60)  # 1/8: 40 x 60
    truth = np.asarray(truth.resize(found.pixels.shape[::-1], Image.Resampling.BOX), dtype=int)
    assert np.abs(found.pixels - truth).mean() < 2


def test_corrupt_data_of_a_jpeg_are_told_of(tmp_path: Path, pixels: np.ndarray) -> None:
    path = tmp_path / "picture.jpg"
    Image.fromarray(np.tile(pixels, (4, 4, 1))).save(path)
    data = bytearray(path.read_bytes())
    assert load_grey(path, at_least=8).damage == ""
    data[len(data) // 2 : len(data) // 2 + 3] = b"\xff\xd9\xff"  # an end in the middle
    data[len(data) // 3 : len(data) // 3 + 40] = bytes(40)
    path.write_bytes(bytes(data))
    by_pillow(path)  # says nothing
    found = load_grey(path, at_least=8)
    assert "orrupt" in found.damage
    assert found.pixels.shape == (160, 240)


# --- limits, and formats of other packages -------------------------------------------------------


@pytest.mark.parametrize("ending", ["png", "webp", "tiff", "gif"])
def test_a_picture_beyond_pillows_limit_is_loaded(
    tmp_path: Path, pixels: np.ndarray, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"large.{ending}"
    Image.fromarray(pixels).save(path)
    truth = by_pillow(path)
    for limit in (100, pixels.shape[0] * pixels.shape[1] - 1):  # an error, a warning
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises((Image.DecompressionBombError, Image.DecompressionBombWarning)):
                Image.open(path)
            np.testing.assert_array_equal(load_image(path), truth)
            assert upright_size(path) == truth.shape[:2]
        assert limit == Image.MAX_IMAGE_PIXELS


def test_the_limit_is_put_back_after_an_error(tmp_path: Path) -> None:
    (tmp_path / "no.png").write_bytes(b"no picture")
    limit = Image.MAX_IMAGE_PIXELS
    with pytest.raises(DataError):
        load_image(tmp_path / "no.png")
    assert limit == Image.MAX_IMAGE_PIXELS
    assert limit is not None


def test_a_picture_too_large_for_the_memory_is_named(
    tmp_path: Path, pixels: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.fromarray(pixels).save(tmp_path / "large.png")

    def load(self: Image.Image) -> None:
        raise MemoryError

    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", load)
    with pytest.raises(DataError, match=r"large\.png.*too large for the memory"):
        load_image(tmp_path / "large.png")


@pytest.mark.parametrize(
    ("start", "package"),
    [
        (b"\0\0\0\x18ftypheic\0\0\0\0", "pillow-heif"),
        (b"\0\0\0\x18ftypmif1\0\0\0\0", "pillow-heif"),
        (b"\0\0\0\x0cJXL \r\n\x87\n", "pillow-jxl-plugin"),
        (b"\xff\x0a" + bytes(20), "pillow-jxl-plugin"),
    ],
)
def test_the_package_that_reads_a_format_is_named(
    tmp_path: Path, start: bytes, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("pillow_heif", "pillow_jxl"):
        monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "picture.jpg").write_bytes(start)
    for read in (load_image, upright_size):
        with pytest.raises(DataError, match=rf"picture\.jpg.*install the package {package}"):
            read(tmp_path / "picture.jpg")


def test_the_package_is_used_where_it_is(
    tmp_path: Path, pixels: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Heif(Image.Image):
        format = "HEIF"

    def accept(prefix: bytes) -> bool:
        return prefix[4:12] == b"ftypheic"

    def opened(file: io.BytesIO, name: str) -> Image.Image:
        return Image.open(io.BytesIO(file.read()[24:]))

    def register() -> None:
        monkeypatch.setitem(Image.OPEN, "HEIF", (opened, accept))
        monkeypatch.setattr(Image, "ID", [*Image.ID, "HEIF"])

    module = types.ModuleType("pillow_heif")
    module.register_heif_opener = register  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pillow_heif", module)
    inner = io.BytesIO()
    Image.fromarray(pixels).save(inner, "PNG")
    path = tmp_path / "phone.heic"
    path.write_bytes(b"\0\0\0\x18ftypheic".ljust(24, b"\0") + inner.getvalue())
    np.testing.assert_array_equal(load_image(path), pixels)


def test_a_tiff_that_pillow_does_not_know_is_told_as_one(
    tmp_path: Path, pixels: np.ndarray
) -> None:
    path = tmp_path / "bands.tiff"
    cv2.imwrite(str(path), pixels.astype(np.float32) / 255)
    with pytest.raises(DataError, match="a TIFF of a kind that Pillow cannot read"):
        load_image(path)


@pytest.mark.parametrize("name", ["é – 猫 with blanks.JPG", "é – 猫 with blanks.jpg"])
def test_names_beyond_ascii(tmp_path: Path, pixels: np.ndarray, name: str) -> None:
    Image.fromarray(pixels).save(tmp_path / name, "JPEG")
    np.testing.assert_array_equal(load_image(tmp_path / name), by_pillow(tmp_path / name))


def test_a_name_that_is_not_utf_8_can_be_said(tmp_path: Path, pixels: np.ndarray) -> None:
    path = tmp_path / b"caf\xe9.png".decode(errors="surrogateescape")
    try:
        Image.fromarray(pixels).save(path)
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    np.testing.assert_array_equal(load_image(path), pixels)
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"caf.*0 bytes") as error:
        load_image(path)
    str(error.value).encode("utf-8")
