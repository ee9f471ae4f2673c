"""Kedro datasets of this project: folders, weights, pictures."""

from __future__ import annotations

import hashlib
import json
import os
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kedro.io import AbstractDataset, DatasetError
from kedro_datasets._typing import ImagePreview

from detpipe.core.errors import DetpipeError
from detpipe.data.remote import exists, is_url, local_copy, mirror_path
from detpipe.data.remote_errors import shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL.Image import Image
    from torch import Tensor

    from detpipe.core.types import Weights
    from detpipe.data.store import Store

_PREVIEW = 1200
"""A picture in a preview of several is at most this wide, pixels."""


class FolderDataset(AbstractDataset[None, Path]):
    """A folder that nodes work in (image folder, checkpoint folder); loads as its ``Path``.

    It is an input only: what is written into it is the business of the node that got it. A URL
    loads as its local mirror (:func:`detpipe.data.remote.local_copy`), which is brought up to date
    at the first load and then stays as it is until the dataset is released.

    Args:
        path: the folder or file; relative to the project, or any fsspec URL (``s3://…``).
        missing: what a missing folder means when it is loaded: an ``error``, ``create`` it, or
            ``pass`` (the node deals with it). At a URL it is always an error.
        hint: what to do about it, for the error's message.
        credentials: for a URL: options of its file system that are secret; the name of an entry of
            ``conf/local/credentials.yml``.
        storage_options: for a URL: further options of its file system (``endpoint_url``, ``anon``).
        metadata: for plug-ins such as kedro-viz.
    """

    def __init__(
        self,
        *,
        path: str,
        missing: Literal["error", "create", "pass"] = "error",
        hint: str = "",
        credentials: dict[str, Any] | None = None,
        storage_options: dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        self.path = path
        self._url = path if is_url(path) else ""
        self._path = mirror_path(path) if self._url else Path(path)
        self._missing = missing
        self._hint = hint
        self._options = {**(storage_options or {}), **(credentials or {})}
        self._copied = False
        self.metadata = metadata
        if self._options and not self._url:
            raise DatasetError(
                f"'{path}' is a path of this computer: credentials and storage_options are for URLs"
            )
        if self._url and missing == "create":
            raise DatasetError(f"'{path}' is a URL: nothing is created there; name a folder")

    def load(self) -> Path:
        """The folder; an error that says what to do where it is missing."""
        if self._url:
            self._copy_once()
        if self._missing == "create":
            self._path.mkdir(parents=True, exist_ok=True)
        elif self._missing == "error" and not self._path.exists():
            raise DatasetError(f"there is nothing at '{self._path}'. {self._hint}".rstrip())
        return self._path

    def _copy_once(self) -> None:
        if not self._copied:
            try:
                self._path = local_copy(self._url, what="data", storage_options=self._options)
            except DetpipeError as error:
                raise DatasetError(f"{error}. {self._hint}".removesuffix(". ")) from error
            self._copied = True

    def save(self, data: None) -> None:
        """Not possible: nodes write into the folder."""
        raise DatasetError(f"'{self._path}' is a folder that nodes write into; it is not saved")

    def _exists(self) -> bool:
        if self._url and not self._copied:
            return exists(self._url, storage_options=self._options)
        return self._path.exists()

    def _release(self) -> None:
        self._copied = False

    def _describe(self) -> dict[str, Any]:
        return {"path": shown(self._url) or str(self._path), "missing": self._missing}


class WeightsDataset(AbstractDataset["Weights", "Weights"]):
    """A trained model's weights as a safetensors file with their metadata in its header.

    Nothing in the file is executed when it is loaded. It is written to a temporary name and
    renamed, so a half-written file never has the final name. ``digest`` of the metadata (sixteen
    hex digits that change with any tensor) is added when it is written.

    Args:
        filepath: the file; relative to the project.
        metadata: for plug-ins such as kedro-viz.
    """

    def __init__(self, *, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        self._filepath = Path(filepath)
        self.metadata = metadata

    def load(self) -> Weights:
        """State and metadata; the tensors are on the CPU."""
        from safetensors import safe_open

        from detpipe.core.types import Weights

        with safe_open(self._filepath, framework="pt") as file:
            header = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return Weights(state, self._metadata(header))

    def header(self) -> dict[str, Any]:
        """The metadata alone; torch is not imported."""
        from safetensors import safe_open

        with safe_open(self._filepath, framework="numpy") as file:
            return self._metadata(file.metadata() or {})

    def _metadata(self, header: dict[str, str]) -> dict[str, Any]:
        if "detpipe" not in header:
            raise DatasetError(
                f"'{self._filepath}' was not written by detpipe: its header names no classes"
            )
        found: dict[str, Any] = json.loads(header["detpipe"])
        return found

    def save(self, data: Weights) -> None:
        """Writes the file whole or not at all."""
        from safetensors.torch import save_file

        self._filepath.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._filepath.with_name(f".{self._filepath.name}.{os.getpid()}")
        state = {name: tensor.detach().cpu().contiguous() for name, tensor in data.state.items()}
        about = {**data.metadata, "digest": _digest(state)}
        try:
            save_file(
                state,
                temporary,
                metadata={"detpipe": json.dumps(about, sort_keys=True), "format": "pt"},
            )
            temporary.replace(self._filepath)
        finally:
            temporary.unlink(missing_ok=True)

    def _exists(self) -> bool:
        return self._filepath.exists()

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._filepath)}


class PictureDataset(AbstractDataset["Image", "Image"]):
    """One picture (a ``PIL.Image``), shown by kedro-viz.

    Args:
        filepath: the file; relative to the project; the format follows from its suffix.
        metadata: for plug-ins such as kedro-viz.
    """

    def __init__(self, *, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        self._filepath = Path(filepath)
        self.metadata = metadata

    def load(self) -> Image:
        """The picture, read into memory."""
        from PIL import Image

        with Image.open(self._filepath) as image:
            return image.copy()

    def save(self, data: Image) -> None:
        """Writes the picture."""
        self._filepath.parent.mkdir(parents=True, exist_ok=True)
        data.save(self._filepath)

    def preview(self) -> ImagePreview:
        """The picture as base64 PNG."""
        return _as_preview(self.load())

    def _exists(self) -> bool:
        return self._filepath.exists()

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._filepath)}


class FiguresDataset(AbstractDataset["dict[str, Figure | Image]", "dict[str, Image]"]):
    """Matplotlib figures or pictures by file name in a folder; kedro-viz shows them as one.

    Args:
        path: the folder; relative to the project. What an earlier save left in it is removed.
        suffix: ``.png``, for drawings, or ``.jpg``, for photographs.
        metadata: for plug-ins such as kedro-viz.
    """

    def __init__(
        self,
        *,
        path: str,
        suffix: Literal[".png", ".jpg"] = ".png",
        metadata: dict[str, Any] | None = None,
    ) -> None:
        self._path = Path(path)
        self._suffix = suffix
        self.metadata = metadata

    def load(self) -> dict[str, Image]:
        """The pictures by file name."""
        from PIL import Image

        return {file.name: Image.open(file).convert("RGB") for file in self.files()}

    def save(self, data: dict[str, Figure | Image]) -> None:
        """Writes one file a figure; ``/`` in a name becomes ``_``."""
        self._path.mkdir(parents=True, exist_ok=True)
        for file in self.files():
            file.unlink()
        for name, figure in data.items():
            file = self._path / f"{name.replace('/', '_')}{self._suffix}"
            if hasattr(figure, "savefig"):
                figure.savefig(file)
            else:
                figure.save(file, quality=90)  # PNG has no quality, and ignores it

    def preview(self) -> ImagePreview:
        """All of them as one picture, base64 PNG."""
        from PIL import Image

        pictures = list(self.load().values())
        for picture in pictures:
            picture.thumbnail((_PREVIEW, picture.height))
        width = max((picture.width for picture in pictures), default=1)
        sheet = Image.new("RGB", (width, sum(p.height for p in pictures) or 1), "white")
        top = 0
        for picture in pictures:
            sheet.paste(picture, (0, top))
            top += picture.height
        return _as_preview(sheet)

    def files(self) -> list[Path]:
        """The pictures that are there."""
        return sorted(self._path.glob(f"*{self._suffix}"))

    def _exists(self) -> bool:
        return bool(self.files())

    def _describe(self) -> dict[str, Any]:
        return {"path": str(self._path)}


class StoreDataset(AbstractDataset["Store", "Store"]):
    """The images and boxes that training reads, as one file of columns.

    It loads as a store of paths without a folder; ``store.at(raw)`` says where the pictures are.
    Loading maps the file and compares its content with its digest, 16 ms for COCO's 860,000 boxes.

    Args:
        filepath: the file; relative to the project.
        metadata: for plug-ins such as kedro-viz.
    """

    def __init__(self, *, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        self._filepath = Path(filepath)
        self.metadata = metadata

    def load(self) -> Store:
        """The store, all splits of it."""
        from detpipe.data.store import Store

        return Store.open(self._filepath, Path(), verify=True)

    def save(self, data: Store) -> None:
        """Writes the file whole or not at all."""
        self._filepath.parent.mkdir(parents=True, exist_ok=True)
        data.save(self._filepath)

    def _exists(self) -> bool:
        return self._filepath.exists()

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._filepath)}


def _digest(state: dict[str, Tensor]) -> str:
    import torch

    content = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        content.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        content.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return content.hexdigest()[:16]


def _as_preview(picture: Image) -> ImagePreview:
    import base64

    buffer = BytesIO()
    picture.save(buffer, format="PNG")
    return ImagePreview(base64.b64encode(buffer.getvalue()).decode())
