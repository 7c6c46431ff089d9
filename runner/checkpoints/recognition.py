"""Recognises the format of a checkpoint by its content, and identifies other files in errors.

Every command imports this module to find runs and checkpoints, so it imports neither NumPy nor a
library that reads checkpoints.
"""

from __future__ import annotations

import importlib
import json
import os
import re
from enum import Enum
from typing import TYPE_CHECKING

from runner.checkpoints import archives, files
from runner.checkpoints.files import DAMAGE
from runner.errors import CheckpointError

if TYPE_CHECKING:
    from runner.checkpoints.reader import CheckpointReader


class Format(Enum):
    """A checkpoint format: its title, the module and the function or class that open it.

    After these come the suffixes by which its files are found in a directory.
    """

    BUNDLE = ("TensorFlow bundle", "bundle", "open_bundle")
    V1 = ("TensorFlow V1 checkpoint", "bundle", "V1Reader")
    SAVED_MODEL = ("SavedModel directory", "bundle", "open_saved_model")
    HDF5 = ("HDF5 file of Keras", "keras_files", "open_hdf5", ".h5", ".hdf5")
    KERAS = (".keras archive", "keras_files", "KerasArchiveReader", ".keras")
    SAFETENSORS = (".safetensors", "array_files", "SafetensorsReader", ".safetensors")
    TORCH = ("PyTorch file", "torch_files", "TorchReader", ".pt", ".pth", "pytorch_model.bin")
    SHARDS = (
        *("index of shards", "shards", "ShardsReader"),
        *(".safetensors.index.json", ".bin.index.json", ".weights.json"),
    )
    ORBAX = ("Orbax checkpoint", "orbax", "OrbaxReader")
    MSGPACK = ("Flax .msgpack", "msgpack_files", "MsgpackReader", ".msgpack")
    WORD_VECTORS = ("GloVe or word2vec file", "word_vectors", "WordVectorsReader")
    NPZ = (".npz", "array_files", "NpzReader", ".npz")
    NPY = (".npy", "array_files", "NpyReader", ".npy")

    def __init__(self, title: str, module: str, opener: str, *suffixes: str) -> None:
        self.title, self._module, self._opener, self.suffixes = title, module, opener, suffixes

    def open(self, path: str, *mapping: str) -> CheckpointReader:
        """Returns the reader of a checkpoint on this machine, or of an index of shards anywhere.

        The module is imported here, because TensorFlow and h5py take seconds to import.

        Raises:
          CheckpointError: when the checkpoint is damaged.
        """
        module = importlib.import_module(f"runner.checkpoints.formats.{self._module}")
        reader: CheckpointReader = getattr(module, self._opener)(path, *mapping)
        return reader


KNOWN = tuple(form.title for form in Format)

# The end of a V1 checkpoint, and of the index of a bundle.
TABLE_MAGIC = bytes.fromhex("57fb808b247547db")
# The pickled integer at the beginning of PyTorch's files before version 1.6.
TORCH_MAGIC = (0x1950A86A20F9469CFC6C).to_bytes(10, "little")
_HEAD = 1024
_HDF5 = b"\x89HDF\r\n\x1a\n"
# A map of MessagePack whose first key is a string.
_MSGPACK = re.compile(rb"([\x81-\x8f]|\xde..|\xdf....)([\xa1-\xbf]|\xd9)[ -~]", re.DOTALL)
# The first lines of word vectors: counts of rows and columns, or a token and its numbers.
NUMBER = rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
VECTORS_HEADER = re.compile(rb"(\d+) (\d+) *\r?\n")
_VECTORS_ROW = re.compile(rb"[^\n]+?(?: " + NUMBER + rb"){4,}[ \r\n]")
_PART = re.compile(r"(?P<prefix>.*)\.(data-\d{5}-of-\d{5}|meta)", re.DOTALL)
_SAVED_MODEL_FILE = re.compile(r"(?P<folder>.*/)?saved_model\.pb(txt)?", re.DOTALL)
_REMEDY = "name a checkpoint of one of these formats"
# The library peft writes it beside an adapter's factors, `adapter_model.safetensors` or `.bin`.
ADAPTER_CONFIG = "adapter_config.json"

# Files that are mistaken for checkpoints: their first bytes in lower case, the cause, the remedy.
_FOREIGN: tuple[tuple[tuple[bytes, ...], str, str], ...] = (
    (
        (b"version https://git-lfs",),
        "it is a Git LFS pointer, not the file itself",
        "fetch the file with `git lfs pull`",
    ),
    (
        (b"<!doctype html", b"<html", b"<?xml"),
        "it is HTML or XML, as a failed download leaves it",
        "download the file itself: open the address in a browser to see the page",
    ),
    (
        (b"\x1f\x8b", b"bzh", b"\xfd7zxz"),
        "it is compressed by gzip, bzip2 or xz",
        "unpack it with gunzip, bunzip2, unxz or tar",
    ),
    (
        (b"\x80",),
        "it is pickled, and not by torch.save: to load it is to run whatever code is in it",
        "if you trust the file, load it yourself and save its arrays: np.savez(path, **arrays)",
    ),
)


def recognise(path: str) -> Format:
    """Returns the format of the checkpoint at `path`: a prefix, a file or a SavedModel's directory.

    Raises:
      CheckpointError: when there is no checkpoint, or it cannot be read.
    """
    try:
        if files.exists(f"{path}.index"):
            return Format.BUNDLE
        if is_v1(path):
            return Format.V1
        require_no_adapter(path)
        if files.is_directory(path):
            if is_saved_model(path):
                return Format.SAVED_MODEL
            if is_orbax(path):
                return Format.ORBAX
            cause = "it is a directory, neither a SavedModel nor of Orbax"
            raise _foreign(path, cause, "name a checkpoint in it")
        if files.exists(path):
            return _file(path)
    except OSError as error:
        raise denied(path, error) from error
    raise CheckpointError.of(
        f"there is no checkpoint at {path}",
        "neither a file nor a directory nor a prefix",
        "correct the path",
    )


def require_no_adapter(path: str) -> None:
    """Refuses an adapter of peft, which is a change of weights, and not a model's weights.

    `path` is the folder of an adapter, or a file in it. Settings say what the change is, and every
    version of peft knows more of them.

    Raises:
      CheckpointError: when it is an adapter.
    """
    is_directory = files.is_directory(path)
    folder, name = (path, "") if is_directory else os.path.split(path)
    if not is_directory and not name.startswith("adapter_"):
        return
    if files.is_file(os.path.join(folder, ADAPTER_CONFIG)):
        raise CheckpointError.of(
            f"{path} is an adapter of peft",
            "it holds changes of another model's weights, which peft alone merges as it trained",
            "merge it where peft is installed, and name the merged file:\n"
            "    from peft import PeftModel\n"
            f"    model = PeftModel.from_pretrained(BASE_MODEL, {folder!r}).merge_and_unload()\n"
            '    torch.save(model.state_dict(), "merged.pt")',
        )


def is_saved_model(directory: str) -> bool:
    """Returns whether a directory is a SavedModel."""
    return any(
        files.exists(os.path.join(directory, name))
        for name in ("saved_model.pb", "saved_model.pbtxt", "variables/variables.index")
    )


def is_orbax(directory: str) -> bool:
    """Returns whether a directory is a checkpoint that Orbax saved."""
    return files.is_file(os.path.join(directory, "_METADATA"))


def split_mapping(path: str) -> tuple[str, str]:
    """Splits `FILE#MAPPING` into the file and the mapping in it; the latter is empty without one.

    A path that exists as it is has no mapping, and the name of a folder may hold a `#`.
    """
    if "#" not in path or files.exists(path) or files.exists(f"{path}.index"):
        return path, ""
    file, _, mapping = path.rpartition("#")
    if "/" in mapping and not files.is_file(file):
        return path, ""
    return file, mapping


def is_v1(path: str) -> bool:
    """Returns whether `path` is a V1 checkpoint: a file, or the pattern of its shards."""
    directory, name = os.path.split(path)
    if "?" in name:
        return bool(files.matching(directory, name))
    is_table = files.is_file(path) and files.read_end(path, len(TABLE_MAGIC)) == TABLE_MAGIC
    return is_table and not path.endswith(".index")


def is_word_vectors(head: bytes) -> bool:
    """Returns whether a file with these first bytes holds word vectors of GloVe or word2vec."""
    header = VECTORS_HEADER.match(head)
    if header is None:
        return _VECTORS_ROW.match(head) is not None
    return 4 <= int(header[2]) <= 1 << 14 and b" " in head[header.end() :]


def is_torch(path: str) -> bool:
    """Returns whether a file begins as PyTorch's files do, which include Lightning's."""
    if not files.is_file(path):
        return False
    with files.reading(path) as file:
        head = file.read(_HEAD)
    return head.startswith(b"PK") or TORCH_MAGIC in head[:20]


def _file(path: str) -> Format:
    with files.reading(path) as file:
        head = file.read(_HEAD)
    if not head:
        raise _foreign(path, "it is empty: 0 bytes", "copy or download it again")
    if head.startswith(_HDF5):
        return Format.HDF5
    if head.startswith(b"PK"):
        return _archive(path)
    if head.startswith(b"\x93NUMPY"):
        return Format.NPY
    if path.endswith(".index") and files.read_end(path, len(TABLE_MAGIC)) == TABLE_MAGIC:
        remedy = f"give the prefix instead: {path.removesuffix('.index')}"
        raise _foreign(path, "it is the index of a bundle", remedy)
    if TORCH_MAGIC in head[:20]:
        return Format.TORCH
    # A safetensors file begins with the length of a JSON header, and the header.
    if 2 <= int.from_bytes(head[:8], "little") <= files.size(path) - 8 and head[8:9] == b"{":
        return Format.SAFETENSORS
    if head.lstrip().startswith(b"{"):
        return _json(path)
    if _MSGPACK.match(head):
        return Format.MSGPACK
    if is_word_vectors(head):
        return Format.WORD_VECTORS
    raise _unknown(path, head)


def _archive(path: str) -> Format:
    try:
        with archives.opened_archive(path) as archive:
            names = archive.namelist()
    except DAMAGE as error:
        cause = f"it begins like a zip archive and cannot be read: {error}"
        raise _foreign(path, cause, "copy or download it again") from error
    if "model.weights.h5" in names:
        return Format.KERAS
    if names and all(name.endswith(".npy") for name in names):
        return Format.NPZ
    if any(name.endswith("/data.pkl") for name in names):
        return Format.TORCH
    raise _foreign(path, "it is a zip archive of something else", _REMEDY)


def _json(path: str) -> Format:
    try:
        content = json.loads(files.read_text(path))
    except OSError:
        raise
    except DAMAGE as error:
        raise _foreign(path, f"it begins like JSON and is damaged: {error}", _REMEDY) from error
    if "weight_map" in content:
        return Format.SHARDS
    raise _foreign(path, "it is JSON without a `weight_map` of shards", _REMEDY)


def _unknown(path: str, head: bytes) -> CheckpointError:
    start = head.lstrip().lower()
    for beginnings, cause, remedy in _FOREIGN:
        if start.startswith(beginnings):
            return _foreign(path, cause, remedy)
    if head[:4] in (b"GGUF", b"ggml", b"ggjt", b"ggla"):
        cause = "it is a model for llama.cpp: its weights are renamed, and mostly quantized"
        return _foreign(path, cause, "name the checkpoint that it was converted from")
    if head[4:8] == b"TFL3":
        cause = "it is a TFLite model: its layers are fused, and its values often rounded"
        return _foreign(path, cause, "name the checkpoint that it was converted from")
    if path.endswith(".onnx"):
        cause = "it is an ONNX model: its constants are folded, and its names often numbers"
        return _foreign(path, cause, "name the checkpoint that it was exported from")
    if part := _PART.fullmatch(path):
        remedy = f"give the prefix instead: {part['prefix']}"
        return _foreign(path, "it is one file of a bundle", remedy)
    if graph := _SAVED_MODEL_FILE.fullmatch(path):
        folder = graph["folder"] or "."
        return _foreign(path, "it is the graph of a SavedModel", f"give its folder: {folder}")
    return _foreign(path, f"it begins with {head[:8]!r}, like none of them", _REMEDY)


def _foreign(path: str, cause: str, remedy: str) -> CheckpointError:
    return CheckpointError.of(f"{path} is not a checkpoint of a known format", cause, remedy, KNOWN)


def denied(path: str, error: OSError) -> CheckpointError:
    """Returns the error for a path that cannot be read."""
    forbidden = isinstance(error, PermissionError)
    remedy = "give this user the right to read it" if forbidden else "correct that"
    return CheckpointError.of(
        f"{error.filename or path} cannot be read",
        error.strerror or str(error),
        f"{remedy}, or name another checkpoint",
    )
