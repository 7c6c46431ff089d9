"""PyTorch's files agree with `torch.load` bit for bit, and nothing in them is ever executed."""

from __future__ import annotations

import io
import pickle
import pickletools
import random
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runner.checkpoints.formats.pickle_nodes import (
    MAX_BYTES,
    Global,
    PickledCall,
    PickleError,
    read_pickle,
)
from runner.checkpoints.formats.torch_files import TorchReader
from runner.checkpoints.reader import parse_dtype
from runner.errors import CheckpointError
from tests.support.torch_files import Pickled, Storage, dumped, save, save_legacy, tensor

DATA = Path(__file__).parents[2] / "data" / "torch"
FILES = sorted(DATA.glob("*.pt"))


def expected(file: Path) -> dict[str, NDArray[Any]]:
    """Returns the values that `torch.load` read from a file, by tensor name; see make.py there."""
    values = {}
    with np.load(file.with_suffix(".npz")) as arrays:
        for key, value in arrays.items():
            dtype, name = key.split(":", 1)
            values[name] = value.view(parse_dtype(dtype))
    return values


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_value_is_that_of_torch_load(file: Path) -> None:
    reader = TorchReader(str(file))
    spec = reader.spec()
    names = {**{name: name for name in spec.tensors}, **spec.tied}
    values = expected(file)
    assert set(names) == set(values)
    for name, value in values.items():
        ((_, array),) = reader.read([names[name]])
        assert (array.dtype, array.shape) == (value.dtype, value.shape)
        assert array.tobytes() == value.tobytes(), name
        assert spec.tensors[names[name]].shape == value.shape


def test_tensors_keep_their_order_and_tied_ones_share_a_tensor() -> None:
    spec = TorchReader(str(DATA / "state_dict-2.15.pt")).spec()
    assert list(spec.tensors)[:3] == ["conv.weight", "conv.bias", "norm.weight"]
    assert spec.tied == {"tied.weight": "head.0.weight", "tied.bias": "head.0.bias"}


def test_the_mapping_is_chosen_and_named() -> None:
    file = str(DATA / "lightning-2.15.pt")
    spec = TorchReader(file).spec()
    assert (spec.path, spec.step) == (f"{file}#state_dict", 120)
    state = TorchReader(file, "callbacks").spec
    with pytest.raises(CheckpointError, match="holds no tensors in 'callbacks'"):
        state()
    with pytest.raises(CheckpointError, match=r"choices: .*#state_dict"):
        TorchReader(file, "state_dcit").spec()


def test_a_file_made_by_hand_is_read(tmp_path: Path) -> None:
    path = save(tmp_path / "m.pt", {"a": tensor()}, {"0": np.arange(4, dtype="<f4").tobytes()})
    assert [value.tolist() for _, value in TorchReader(path).read(["a"])] == [[0, 1, 2, 3]]


BAD = {
    "an offset beyond the storage": ({"a": tensor(offset=1)}, "goes beyond its storage"),
    "a negative offset": ({"a": tensor(offset=-1)}, "not integers of at least 0"),
    "a negative stride": ({"a": tensor(strides=(-1,))}, "not integers of at least 0"),
    "strides that overflow 64 bits": (
        {"a": tensor(shape=(2, 2), strides=(2**62, 2**62))},
        "goes beyond its storage",
    ),
    "a storage shorter than its tensor": ({"a": tensor(shape=(5,))}, "goes beyond its storage"),
    "values repeated to terabytes": (
        {"a": tensor(shape=(2**40,), strides=(0,))},
        "repeats its storage",
    ),
    "a storage that is missing": ({"a": tensor(Storage("7"))}, "storage '7'"),
    "an unknown storage class": ({"a": tensor(Storage(kind="EvilStorage"))}, "EvilStorage"),
    "a shape of strings": ({"a": tensor(shape=("4",))}, "not integers"),
    "too few strides": ({"a": tensor(shape=(2, 2))}, "2 dimensions and 1 strides"),
    # CVE-2026-24747 of PyTorch: SETITEM on something that is no dictionary.
    "an item of a list": (b"\x80\x02](K\x00K\x01s.", "damaged|sets an item"),
    "an item of a list, without a mark": (b"\x80\x02]K\x00K\x01s.", "sets an item of a list"),
    "an extension code": (b"\x80\x02\x82\x01.", "an extension or a buffer"),
    "an out-of-band buffer": (b"\x80\x05\x97.", "an extension or a buffer"),
    "an empty stack": (b"\x80\x02R.", "damaged"),
    "an unknown memo": (b"\x80\x02h\x05.", "damaged"),
    "two objects": (b"\x80\x02]].", "several objects"),
    "a mark that nothing takes": (b"\x80\x02(].", "several objects"),
    "the state of a storage": (
        dumped(Storage())[:-1] + b"N}X\x05\0\0\0valueK\x01s\x86b.",
        "sets the state of a PersistentId",
    ),
    "the state of a class": (b"\x80\x02cos\nsystem\n}X\x04\0\0\0nameNsb.", "state of a Global"),
    "arguments that are no tuple": (b"\x80\x02cos\nsystem\nX\x02\0\0\0idR.", "no tuple"),
    "a class of a number": (b"\x80\x04K\x01K\x02\x93.", "damaged"),
    "a frame beyond the end": (b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f].", "no tensors"),
    "a memo of terabytes": (b"\x80\x02]r\xff\xff\xff\xff.", "no tensors"),
    "a key that no hash reaches": (b"\x80\x02})" + b"\x85" * 200_000 + b"Ns.", "no tensors"),
    "an element that no hash reaches": (
        b"\x80\x04\x8f()" + b"\x85" * 200_000 + b"\x90.",
        "nested too deeply",
    ),
    "an instance in the old way": (b"(S'touch x'\nios\nsystem\n.", "no tensors"),
    "keywords": (b"\x80\x04cos\nsystem\nX\x02\0\0\0id\x85}\x92.", "no tensors"),
    "a byte array of terabytes": (b"\x80\x05\x96\0\0\0\0\0\x40\0\0.", "damaged"),
    "no end": (b"\x80\x02]", "damaged"),
    "a string longer than the file": (b"\x80\x02X\xff\xff\xff\x7fabc.", "damaged"),
}


@pytest.mark.parametrize("case", BAD)
def test_hostile_files_are_errors_that_name_the_file(case: str, tmp_path: Path) -> None:
    value, cause = BAD[case]
    path = save(tmp_path / "m.pt", value)
    with pytest.raises(CheckpointError, match=cause) as error:
        TorchReader(path).spec()
    assert path in str(error.value)


def test_code_in_a_pickle_is_only_named(tmp_path: Path) -> None:
    """CVE-2025-32434 and its like: `os.system` where Lightning keeps hyperparameters."""
    evil = Pickled("os.system", f"touch {tmp_path / 'executed'}")
    content = {"state_dict": {"a": tensor()}, "hyper_parameters": {"x": evil}, "y": (evil,)}
    path = save(tmp_path / "m.ckpt", content)
    assert list(TorchReader(path).spec().tensors) == ["a"]
    with pytest.raises(CheckpointError, match="holds no tensors"):
        TorchReader(save(tmp_path / "evil.pt", {"a": evil})).spec()
    assert not (tmp_path / "executed").exists()


def test_a_tensor_that_cannot_be_read_says_what_it_is(tmp_path: Path) -> None:
    quantized = Pickled("torch._utils._rebuild_qtensor", Storage(), 0, (4,), (1,), (), False, {})
    path = save(tmp_path / "m.pt", {"a": tensor(), "b": quantized})
    assert TorchReader(path).spec().tensors["b"].dtype == "qtensor of PyTorch"
    with pytest.raises(CheckpointError, match="qtensor of PyTorch"):
        list(TorchReader(path).read(["b"]))


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ("compressed", "compressed or encrypted"),
        ("twice", "two members"),
        ("script", "TorchScript"),
        ("no pickle", "no data.pkl"),
    ],
)
def test_archives_that_torch_never_writes_are_refused(
    change: str, cause: str, tmp_path: Path
) -> None:
    path = save(tmp_path / "m.pt", {"a": tensor()})
    method = zipfile.ZIP_DEFLATED if change == "compressed" else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w" if change == "no pickle" else "a", method) as archive:
        if change == "compressed":
            archive.writestr("m/data/1", bytes(1 << 20))
        elif change == "twice":
            with pytest.warns(UserWarning, match="Duplicate"):
                archive.writestr("m/data/0", bytes(16))
        elif change == "script":
            archive.writestr("m/constants.pkl", b"")
        else:
            archive.writestr("m/other", b"")
    with pytest.raises(CheckpointError, match=cause):
        TorchReader(path).spec()


def nested(depth: int) -> bytes:
    """A mapping in a mapping, and so on."""
    return b"\x80\x02" + b"}X\x01\x00\x00\x00a" * depth + b"N" + b"s" * depth + b"."


def shared(depth: int) -> bytes:
    """Mappings that hold the next one twice: 2 ** depth paths to one tensor."""
    parts = [b"\x80\x02}q\x00"]
    for number in range(depth):
        memo = bytes([number]), bytes([number + 1])
        parts.append(b"0}(X\x01\x00\x00\x00ah" + memo[0] + b"X\x01\x00\x00\x00bh" + memo[0])
        parts.append(b"uq" + memo[1])
    return b"".join([*parts, b"."])


@pytest.mark.parametrize(
    "content", [nested(100_000), shared(60), b"\x80\x02" + b"(" * 10**6 + b"."]
)
def test_structures_that_would_overflow_or_never_end_are_errors(
    content: bytes, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError):
        TorchReader(save(tmp_path / "m.pt", content)).spec()


def test_a_large_pickle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    save(path, b"\x80\x02" + bytes(MAX_BYTES))
    with pytest.raises(CheckpointError, match="larger than"):
        TorchReader(str(path)).spec()


def test_every_opcode_is_read_or_refused() -> None:
    """Opcodes that nothing implements are an error of their own, never a wrong object."""
    for opcode in pickletools.opcodes:
        with pytest.raises(PickleError):
            read_pickle(io.BytesIO(opcode.code.encode("latin-1") * 2))


def test_nodes_are_what_the_pickle_says() -> None:
    content = {"a": [1, 2.5, None, True, b"x"], 3: ("y",), "set": {1}, "complex": 2 + 1j}
    root, references = read_pickle(io.BytesIO(pickle.dumps(content, 4)))
    assert (root["a"], root[3], root["set"]) == (content["a"], ("y",), [1])
    call = root["complex"]
    assert isinstance(call, PickledCall)
    assert call.function == Global("builtins.complex")
    assert references == []


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_of_numpy_are_told(protocol: int, tmp_path: Path) -> None:
    """From protocol 5 on, NumPy pickles an array as a call of another function."""
    array = pickle.dumps({"n": np.arange(3), "x": [np.float32(2)]}, protocol)
    spec = TorchReader(save(tmp_path / "m.pt", array)).spec()
    assert {name: tensor.dtype for name, tensor in spec.tensors.items()} == {
        "n": "array of NumPy",
        "x.0": "array of NumPy",
    }


def test_objects_are_dropped_as_pickle_drops_them() -> None:
    content = b"\x80\x02" + b"K\x01K\x020" + b"(0" + b"(K\x03K\x041" + b"."
    assert read_pickle(io.BytesIO(content))[0] == pickle.loads(content) == 1


@pytest.mark.parametrize("file", ["views-2.15", "lightning-1.4", "module-2.0"])
def test_damaged_files_are_errors_or_read(file: str, tmp_path: Path) -> None:
    """Flipped, cut and repeated bytes: an error that names the file, or tensors within bounds."""
    content = (DATA / f"{file}.pt").read_bytes()
    path = tmp_path / "damaged.pt"
    draw = random.Random(file)
    for _ in range(150):
        damaged = bytearray(content)
        for _ in range(draw.randint(1, 8)):
            place = draw.randrange(len(damaged))
            damaged[place] = draw.randrange(256)
        if draw.random() < 0.3:
            del damaged[draw.randrange(len(damaged)) :]
        path.write_bytes(bytes(damaged))
        try:
            reader = TorchReader(str(path))
            sizes = [value.nbytes for _, value in reader.read(list(reader.spec().tensors))]
            message = str(path)
        except CheckpointError as error:
            sizes, message = [], str(error)
        assert max(sizes, default=0) < 1 << 20
        assert str(path) in message


def test_ordered_dictionaries_of_python_2_are_read(tmp_path: Path) -> None:
    """It pickled their items as an argument, which is how older files of model zoos are."""
    pair = b"\x80\x02ccollections\nOrderedDict\n](](X\x01\x00\x00\x00a"
    content = pair + dumped(tensor())[2:-1] + b"ee\x85R."
    assert list(TorchReader(save(tmp_path / "m.pt", content)).spec().tensors) == ["a"]


def test_keys_may_hold_dots_and_lists_are_numbered(tmp_path: Path) -> None:
    path = save(tmp_path / "m.pt", {"model.ema": {"a": ({"b": tensor()}, tensor())}})
    assert list(TorchReader(path, "model.ema").spec().tensors) == ["a.0.b"]
    assert list(TorchReader(path, "model.ema.a.0").spec().tensors) == ["b"]


def test_two_tensors_of_one_name_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "m.pt", {"a": {"b": tensor()}, "a.b": tensor(shape=(2,))})
    with pytest.raises(CheckpointError, match=r"two tensors 'a\.b'"):
        TorchReader(path).spec()


def test_quantized_tensors_do_not_hide_others_of_a_legacy_file(tmp_path: Path) -> None:
    quantized = Pickled(
        "torch._utils._rebuild_qtensor", Storage("0", "QInt8Storage"), 0, (4,), (1,), (), False, {}
    )
    storages: dict[str, NDArray[Any]] = {
        "0": np.zeros(4, np.int8),
        "1": np.arange(4, dtype=np.float32),
    }
    path = save_legacy(tmp_path / "m.pt", {"q": quantized, "a": tensor(Storage("1"))}, storages)
    assert [value.tolist() for _, value in TorchReader(path).read(["a"])] == [[0, 1, 2, 3]]


@pytest.mark.parametrize("name", ["a", "a" * 10_000_000])
def test_one_large_mapping_at_many_keys_is_searched_once(name: str, tmp_path: Path) -> None:
    numbers = [b"J" + number.to_bytes(4, "little") for number in range(100_000)]
    shared = b"}q\x00(" + b"".join(number + b"N" for number in numbers) + b"u"
    keys = b"".join(number + b"h\x00" for number in numbers)
    first = pickle.dumps(name, 2)[2:-3] + shared
    with pytest.raises(CheckpointError, match=r"no tensors|too deeply|longer than"):
        TorchReader(save(tmp_path / "m.pt", b"\x80\x02}(" + first + keys + b"u.")).spec()
