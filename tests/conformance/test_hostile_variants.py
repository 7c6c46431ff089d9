"""Damaged and hostile files of other frameworks: an error that names the file, and nothing else.

Run as a module with a folder, a number and a seed, it reads that many variants of good files and
prints a line for each. It may use 1 GB more than at its start, and 10 s of processor time for each
variant; importing, starting or writing anything is a failure.
"""

from __future__ import annotations

import codecs
import dataclasses
import io
import json
import os
import pickletools
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import safetensors.numpy
from huggingface_hub import constants

from runner.checkpoints.formats import word_vectors
from runner.checkpoints.locate import checkpoint_paths
from runner.checkpoints.open import open_reader
from runner.errors import CheckpointError
from tests.support.bytes import MUTATIONS
from tests.support.torch_files import Pickled, Storage, save, tensor

DATA = Path(__file__).parents[1] / "data"
SHORT, LONG = 200, 10_000
SECONDS, BYTES = 10, 1 << 30
# What would be read of a tensor that a model has a variable for.
_READ = 64 << 20


@dataclasses.dataclass(frozen=True)
class Seed:
    """A good checkpoint.

    Attributes:
      folder: its files.
      path: the argument of `checkpoint_paths`, in the folder.
      mutated: the files that a variant changes.
    """

    folder: Path
    path: str
    mutated: tuple[Path, ...]


def seeds(folder: Path) -> list[Seed]:
    """Writes the good files, each in a folder of its own."""
    made = []

    def add(name: str, path: str, source: Path | None = None) -> Path:
        target = folder / name
        if source is not None and source.is_dir():
            shutil.copytree(source, target)
        else:
            target.mkdir()
            if source is not None:
                shutil.copy(source, target / path)
        made.append((target, path))
        return target

    for file in sorted((DATA / "torch").glob("*.pt")):
        add(f"torch-{file.stem}", "m.pt", file)
    for file in sorted((DATA / "flax").glob("*.msgpack")):
        add(f"flax-{file.stem}", "m.msgpack", file)
    add("orbax-manager", "", DATA / "orbax" / "manager")
    add("orbax-folders", "", DATA / "orbax" / "folders")
    rows = np.arange(20, dtype="<f4").reshape(5, 4) / 8
    words = [f"word{number}".encode() for number in range(5)]
    lines = [word + b" %g %g %g %g" % tuple(row) for word, row in zip(words, rows, strict=True)]
    binary = [word + b" " + row.tobytes() for word, row in zip(words, rows, strict=True)]
    for name, content in (
        ("glove", b"\n".join(lines)),
        ("word2vec", b"5 4\n" + b"\n".join(lines) + b"\n"),
        ("binary", b"5 4\n" + b"\n".join(binary)),
    ):
        (add(f"vectors-{name}", "v.txt") / "v.txt").write_bytes(content)
    shards = add("torch-shards", "pytorch_model.bin.index.json")
    save(shards / "a.bin", {"a": tensor()})
    index = {"weight_map": {"a": "a.bin"}}
    (shards / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    hub = add("hub", "hf://org/net") / "models--org--net"
    commit = hub / "snapshots" / ("a" * 40)
    commit.mkdir(parents=True)
    safetensors.numpy.save_file({"w": np.ones(3, np.float32)}, commit / "model.safetensors")
    (hub / "refs").mkdir()
    (hub / "refs" / "main").write_text("a" * 40)
    return [
        Seed(target, path, tuple(sorted(file for file in target.rglob("*") if file.is_file())))
        for target, path in made
    ]


def mutate(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        if changed:
            changed = rng.choice(MUTATIONS)(changed, rng)
    return bytes(changed)


def opcodes(content: bytes) -> list[bytes]:
    """Splits a pickle at its opcodes."""
    starts = [position for *_, position in pickletools.genops(content)]
    return [
        content[start:end] for start, end in zip(starts, [*starts[1:], len(content)], strict=True)
    ]


HOSTILE_OPCODES = (
    *(opcode.code.encode("latin-1") for opcode in pickletools.opcodes if opcode.arg is None),
    *(
        b"cos\nsystem\n",
        b"cbuiltins\nexec\n",
        b"ctorch._utils\n_rebuild_tensor_v2\n",
        b"ios\nsystem\n",
    ),
    *(b"X\x04\x00\x00\x00evil", b"X\xff\xff\xff\xff", b"\x8d" + b"\xff" * 8, b"\x8e" + b"\xff" * 8),
    *(
        b"\x8b\x10\x00\x00\x00" + b"\x7f" * 16,
        b"\x8b\xff\xff\xff\xff",
        b"h\x00",
        b"h\x01",
        b"q\x00",
    ),
    *(
        b"r\xff\xff\xff\xff",
        b"j\xff\xff\xff\x7f",
        b"P0\n",
        b"I99999999999999999999999\n",
        b"F1e999\n",
    ),
    *(b"K\x00", b"N", b"}", b"]", b")", b"(", b"\x85" * 50, b"2\x86" * 30, b"\x82\x01", b"L9\n"),
)


def changed_pickle(content: bytes, rng: random.Random) -> bytes:
    """Drops, repeats, swaps and inserts opcodes."""
    parts = opcodes(content)
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        at, other = rng.randrange(len(parts)), rng.randrange(len(parts))
        action = rng.randrange(5)
        if action == 0 and len(parts) > 2:
            del parts[at]
        elif action == 1:
            parts.insert(at, parts[other])
        elif action == 2:
            parts[at], parts[other] = parts[other], parts[at]
        elif action == 3:
            parts.insert(at, rng.choice(HOSTILE_OPCODES))
        else:
            parts[at] = rng.choice(HOSTILE_OPCODES)
    return b"".join(parts)


def with_changed_pickle(path: Path, rng: random.Random) -> bytes:
    """Changes the pickle in a file of PyTorch, whose checksums are right again."""
    if not zipfile.is_zipfile(path):
        content = path.read_bytes()
        stream = io.BytesIO(content)
        heads = []
        for _ in range(5):
            start = stream.tell()
            for _ in pickletools.genops(stream):
                pass
            heads.append(content[start : stream.tell()])
        at = rng.choice((2, 3, 3, 3, 4))
        heads[at] = changed_pickle(heads[at], rng)
        return b"".join(heads) + content[stream.tell() :]
    target = io.BytesIO()
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(target, "w") as archive:
        for member in source.infolist():
            content = source.read(member)
            if member.filename.endswith("data.pkl"):
                content = changed_pickle(content, rng)
            elif rng.random() < 0.02:
                content = content[: rng.randrange(len(content) + 1)]
            if rng.random() < 0.99:
                archive.writestr(member.filename, content)
    return target.getvalue()


NUMBERS = (0, 1, 2, 4, 5, -1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64, 10**30, -(2**63))


def hostile_value(rng: random.Random, depth: int = 0) -> Any:
    number = rng.choice(NUMBERS)
    kinds: tuple[Callable[[], Any], ...] = (
        lambda: number,
        lambda: tuple(rng.choice(NUMBERS) for _ in range(rng.randrange(5))),
        lambda: rng.choice(("", "cpu", "storage", "0", None, 1.5, float("nan"), b"\xff", True)),
        lambda: Storage(rng.choice("01"), rng.choice(("FloatStorage", "Evil", "")), number),
        lambda: Pickled("os.system", "touch executed"),
        lambda: Pickled(f"torch._utils._rebuild_{rng.choice(('tensor', 'parameter', 'xla'))}"),
        lambda: hostile_tensor(rng),
        lambda: {hostile_key(rng): hostile_value(rng, depth + 1) for _ in range(rng.randrange(3))},
    )
    return rng.choice(kinds[:-1] if depth > 3 else kinds)()


def hostile_key(rng: random.Random) -> Any:
    return rng.choice(("a", "state_dict", "model", "_modules", "_parameters", "..", "/etc", 1, ""))


def hostile_tensor(rng: random.Random) -> Pickled:
    arguments = [Storage(), 0, (4,), (1,), False, {}]
    for _ in range(rng.randrange(3)):
        arguments[rng.randrange(len(arguments))] = hostile_value(rng, 3)
    name = rng.choice(("_rebuild_tensor_v2", "_rebuild_tensor", "_rebuild_tensor_v3"))
    return Pickled(f"torch._utils.{name}", *arguments)


def hostile_pickle(rng: random.Random) -> bytes:
    """A pickle with a bomb in it: depth, breadth, objects that hold themselves."""
    count = rng.choice((100,) * 15 + (10_000,) * 4 + (300_000,))
    bombs = (
        b"\x80\x02}" + b"X\x01\x00\x00\x00a}" * count + b"s" * count + b".",
        b"\x80\x02" + b"(" * count + b"t" * count + b".",
        b"\x80\x02N" + b"\x85" * count + b".",
        b"\x80\x02]" + b"2\x86" * count + b".",
        b"\x80\x02]q\x00h\x00a.",
        b"\x80\x02}q\x00X\x01\x00\x00\x00ah\x00s.",
        # Each mapping holds the one before twice.
        b"\x80\x02}q\x00"
        + b"".join(b"0}(X\x01\0\0\0ah%cX\x01\0\0\0bh%cuq%c" % (n, n, n + 1) for n in range(60))
        + b".",
        b"\x80\x02}" + b"".join(b"X\x06\x00\x00\x00%06dK\x01s" % n for n in range(count)) + b".",
        b"\x80\x02" + b"cos\nsystem\n)R" * min(count, 10_000) + b".",
        b"\x80\x02L" + b"9" * min(count, 100_000) + b"L\n.",
        b"\x80\x02cos\nsystem\nX\x0e\x00\x00\x00touch executed\x85R.",
    )
    return rng.choice(bombs)


def hostile_msgpack(rng: random.Random) -> bytes:
    """A map with arrays of any shape and element type, or lengths beyond the file."""
    if rng.random() < 0.3:
        head = rng.choice(
            (b"\xdf", b"\xdd", b"\xdb", b"\xc6", b"\xc9", b"\xde", b"\x81\xa1a" * 200)
        )
        lengths = struct.pack(">I", rng.choice((0, 5, 1 << 16, (1 << 32) - 1)))
        return b"\x82\xa6params" + head + lengths + rng.randbytes(8) + b"\xa1b\x01"
    kinds = (
        "float32",
        "object",
        "O",
        "U9999999999",
        "V8",
        "M8[s]",
        "(2,3)f4",
        "i4,f4",
        "",
        "int4",
        7,
    )
    shape = [rng.choice((*NUMBERS[:11], -1, "4", 1.5)) for _ in range(rng.randrange(4))]
    packed = msgpack.packb((shape, rng.choice(kinds), bytes(rng.choice((0, 4, 16)))))
    array: Any = msgpack.ExtType(rng.choice((1, 1, 1, 3, 2)), packed)
    if rng.random() < 0.3:
        sizes = {str(at): rng.choice((1, 4, 2**40, -1)) for at in range(rng.randrange(3))}
        chunks = rng.choice(({"0": array}, {}, {"1": array}, [array]))
        array = {"__msgpack_chunked_array__": True, "shape": sizes, "chunks": chunks}
    content: bytes = msgpack.packb({"params": {rng.choice(("a", "..", "/")): array}})
    return content


def hostile_vectors(rng: random.Random) -> bytes:
    counts = [rng.choice((0, 1, 4, 2**20, 2**33, 2**63, 10**30)) for _ in range(2)]
    header = rng.choice((b"", b"%d %d\n" % tuple(counts), b"5 4\n", b"-1 4\n"))
    word = rng.choice((b"a", b"", b" ", b"\xff\x00", b"x" * 100_000, b"1 2 3 4"))
    number = rng.choice((b"0.5", b"1e999", b"nan", b"0x10", b"1_0", b"9" * 5000, b"\x00" * 16))
    row = b" ".join([word, *[number] * rng.choice((0, 3, 4, 5, 300))])
    rows = rng.choice((1, 2, 5, 1000 if len(row) < 10_000 else 5))
    return header + rng.choice((b"\n", b"\r\n", b"")).join([row] * rows)


def changed_json(content: bytes, rng: random.Random) -> bytes:
    """Replaces one value anywhere in a JSON document, or one key."""
    document = json.loads(content)
    places: list[tuple[Any, Any]] = []

    def visit(node: Any) -> None:
        for key in node if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], (dict, list)):
                visit(node[key])

    visit(document)
    values: tuple[Any, ...] = (
        None,
        -1,
        2**40,
        2**70,
        1.5,
        "",
        "..",
        "../../x",
        "/etc/passwd",
        [],
        {},
        [2**40],
        "a\0",
    )
    node, key = rng.choice(places)
    if isinstance(node, dict) and rng.random() < 0.3:
        node[str(rng.choice(values))] = node.pop(key)
    else:
        node[key] = rng.choice(values)
    return json.dumps(document).encode()


def change(seed: Seed, folder: Path, rng: random.Random) -> str:
    """Copies a seed into a folder, changes a file of it, and says what was changed."""
    shutil.copytree(seed.folder, folder)
    file = folder / rng.choice(seed.mutated).relative_to(seed.folder)
    content = file.read_bytes()
    name = seed.folder.name
    if rng.random() < 0.4 or name.startswith("hub"):
        file.write_bytes(mutate(content, rng))
        return f"bytes of {file.name}"
    if file.suffix in (".pt", ".bin"):
        how = rng.choice(("changed pickle", "tensors", "bomb"))
        if how == "changed pickle":
            file.write_bytes(with_changed_pickle(file, rng))
        elif how == "tensors":
            save(file, {"a": hostile_tensor(rng), "b": hostile_value(rng), "c": hostile_value(rng)})
        else:
            save(file, hostile_pickle(rng))
        return how
    if name.startswith("flax"):
        file.write_bytes(hostile_msgpack(rng))
    elif name.startswith("vectors"):
        file.write_bytes(hostile_vectors(rng))
    elif content.startswith(b"{"):
        file.write_bytes(changed_json(content, rng))
    else:
        file.unlink()
    return f"structure of {file.name}"


def read(path: str, folder: Path) -> str:
    """Reads a checkpoint in a folder, and says what came of it."""
    form = ""
    try:
        (resolved,) = checkpoint_paths(path)
        reader = open_reader(resolved)
        spec = reader.spec()
        form = spec.format
        names = [name for name, tensor in spec.tensors.items() if tensor.bytes <= _READ]
        for name in names:
            try:
                ((_, value),) = reader.read([name])
            except CheckpointError as error:
                _require_honest(error)
                continue
            if value.shape != spec.tensors[name].shape:
                return f"wrong: shape of {name}"
        if form == "word vectors":
            word_vectors.tokens(resolved)
    except CheckpointError as error:
        _require_honest(error)
        named = str(folder) in str(error) or path in str(error)
        return "refused" if named else f"wrong: {error} names no file"
    except ValueError as error:
        return "refused" if form == "word vectors" else f"wrong: {error!r}"
    return "read"


def _require_honest(error: CheckpointError) -> None:
    """Running out of memory is no answer; NumPy refuses at once what is too large."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError) and "Unable to allocate" not in str(cause):
            raise AssertionError("it took more than 1 GB") from error
        cause = cause.__cause__


_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CALLS = (
    "os.",
    "subprocess.",
    "socket.",
    "pickle.find_class",
    "exec",
    "import",
    "shutil.",
    "ctypes.",
)
_HARMLESS = ("os.listdir", "os.scandir", "os.walk", "os.fwalk")


class Watch:
    """Collects what happens while a file is read that should not; Python's audit hooks tell it."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.is_on = False
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: Sequence[Any]) -> None:
        if not self.is_on:
            return
        if event == "open":
            is_written = isinstance(arguments[2], int) and arguments[2] & _WRITES
            self.events += [f"open {arguments[0]}"] if is_written else []
        elif event.startswith(_CALLS) and event not in _HARMLESS:
            self.events.append(f"{event} {arguments!r}"[:200])


def variants(
    good: Sequence[Seed], target: Path, count: int, seed: int
) -> Iterator[tuple[str, str]]:
    """Makes the variants in turn; yields what each is, and the path to read."""
    for number in range(count):
        rng = random.Random(seed * 1_000_003 + number)
        chosen = good[number % len(good)]
        shutil.rmtree(target, ignore_errors=True)
        changed = change(chosen, target, rng)
        yield f"{number} {chosen.folder.name} {changed}", path_of(chosen, target)


def path_of(seed: Seed, folder: Path) -> str:
    constants.HF_HUB_CACHE = str(folder)
    return seed.path if seed.path.startswith("hf://") else str(folder / seed.path)


def _files(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*")}


def main(folder: Path, count: int, seed: int) -> None:
    watch = Watch()
    (folder / "seeds").mkdir()
    good = seeds(folder / "seeds")
    for chosen in good:
        outcome = read(path_of(chosen, chosen.folder), chosen.folder)
        assert outcome == "read", (chosen, outcome)
    read("hf://org/other", folder)  # The library imports what its errors need when they occur.
    for codec in ("raw_unicode_escape", "unicode_escape", "latin-1"):
        codecs.lookup(codec)  # What strings in old pickles are decoded by.
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for described, path in variants(good, folder / "variant", count, seed):
        print(described, end=": ", flush=True)
        before = _files(folder / "variant")
        # Of processor time, since the machine may be busy; the signal ends the process.
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        watch.events.clear()
        watch.is_on = True
        try:
            outcome = read(path, folder / "variant")
        except Exception as error:  # noqa: BLE001 - it is looked for
            outcome = f"wrong: {error!r}"
        watch.is_on = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        if watch.events or _files(folder / "variant") != before:
            outcome = f"wrong: {watch.events or 'it wrote a file'}"
        print(outcome.replace("\n", " | "), flush=True)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("count", [SHORT, pytest.param(LONG, marks=pytest.mark.soak)])
def test_hostile_files_are_errors_and_nothing_happens(count: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", __name__, str(tmp_path), str(count), str(count)]
    done = subprocess.run(
        command,
        cwd=DATA.parents[1],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"after {lines[-1:]}: {done.stderr[-3000:]}"
    assert not [line for line in lines if ": wrong" in line]
    outcomes = Counter(line.rpartition(": ")[2] for line in lines)
    assert outcomes["refused"] + outcomes["read"] == count
    assert outcomes["refused"] > count / 2, "most variants are not what they were"


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
