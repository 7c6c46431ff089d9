"""The command line `python -m runner.inspect`: what a checkpoint holds, or how two differ."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from runner.checkpoints.comparison import Difference, Statistics, differences, statistics
from runner.checkpoints.locate import LATEST, Artifacts, is_mlflow_uri, resolve
from runner.checkpoints.open import open_checkpoint
from runner.checkpoints.reader import CheckpointReader, CheckpointSpec, TensorSpec
from runner.config.schema import TrackingConfig
from runner.console import Screen
from runner.errors import CheckpointError, Problem, RunnerError
from runner.restoration.variables import StateClass, classify
from runner.runs.provenance import chain, provenance_of
from runner.runs.run_directory import PROVENANCE
from runner.system.imports import without_import_notes
from runner.tracking import open_store

SAME, DIFFERENT = 0, 1
_OPTIMIZER = ("optimizer", "_optimizer", "optimizer_weights")
_DESCRIPTION = """Lists the tensors of a checkpoint of any format, or says in what two differ.

PATH is a run's folder, a directory of checkpoints, a TensorFlow prefix, a SavedModel, a file
(.h5, .keras, .safetensors, .npz, .npy), or an MLflow URI. Exit code: 0, or 1 when two checkpoints
differ, 2 when a path or its checkpoint cannot be read."""


def main(arguments: Sequence[str] | None = None, screen: Screen | None = None) -> int:
    """Runs the command and returns its exit code."""
    parsed = _parser().parse_args(arguments)
    screen = screen or Screen()
    try:
        with without_import_notes():  # Some formats import TensorFlow.
            artifacts = _artifacts(parsed.paths, parsed.tracking)
            resolved = [resolve(path, parsed.which, artifacts=artifacts) for path in parsed.paths]
            readers = [] if parsed.provenance else [open_checkpoint(path) for (path,) in resolved]
        if parsed.provenance:
            return _provenance(resolved[0][0], screen)
        if len(readers) == 1:
            _list(readers[0], parsed.stats, screen)
            return SAME
        return _compare(readers[0], readers[1], screen)
    except RunnerError as error:
        print(f"runner.inspect: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of a pipe has seen enough; what is left to flush has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return SAME


def state_class(name: str, alias: str, names: Mapping[str, object]) -> StateClass:
    """Returns the class of state of a checkpoint's tensor.

    Args:
      name: the tensor.
      alias: what else it is called, which may say more; the name itself where it is called nothing
        else.
      names: all tensors of the checkpoint; what is called like another tensor and then some, such
        as `kernel/Adam`, belongs to an optimizer.
    """
    parts = name.split("/")
    owners = ("/".join(parts[:count]) for count in range(1, len(parts)))
    slot = any(owner in names for owner in owners) or any(part in _OPTIMIZER for part in parts)
    power = parts[-1].startswith(("beta1_power", "beta2_power"))
    return classify(alias, model=not (slot or power))


def byte_count(tensor: TensorSpec) -> int | None:
    """Returns how many bytes a tensor's values take; None for what has no fixed size.

    That is text, and a `variant`, in which a run keeps its position in the training data.
    """
    if tensor.dtype in ("string", "object", "variant"):
        return None
    import ml_dtypes  # registers bfloat16 and its like with NumPy

    named = getattr(ml_dtypes, tensor.dtype, tensor.dtype)
    return math.prod(tensor.shape) * np.dtype(named).itemsize


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m runner.inspect",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("paths", metavar="PATH", nargs="+", action=_OneOrTwo)
    parser.add_argument(
        "--stats", action="store_true", help="read all values: min, max, mean, NaN count"
    )
    parser.add_argument(
        "--provenance",
        action="store_true",
        help="where the variables of a run's checkpoint came from, back to the first source",
    )
    parser.add_argument(
        "--which", default=LATEST, help="latest (default), best or a step of a directory"
    )
    parser.add_argument(
        "--tracking",
        metavar="URI",
        default=os.environ.get("MLFLOW_TRACKING_URI"),
        help="the MLflow store of runs:/ and models:/ paths; default $MLFLOW_TRACKING_URI",
    )
    return parser


def _artifacts(paths: Sequence[str], tracking: str | None) -> Artifacts | None:
    if tracking is None or not any(map(is_mlflow_uri, paths)):
        return None
    return open_store(TrackingConfig(uri=tracking), {})


class _OneOrTwo(argparse.Action):
    """Takes one path or two."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        """Stores the paths."""
        if isinstance(values, list) and len(values) > 2:
            parser.error(f"one or two paths are compared, not {len(values)}")
        setattr(namespace, self.dest, values)


def _list(reader: CheckpointReader, stats: bool, screen: Screen) -> None:
    spec = reader.spec()
    found: dict[str, Statistics] = {}
    if stats:
        names = [name for name, tensor in spec.tensors.items() if tensor.dtype != "variant"]
        found = {name: statistics(value) for name, value in reader.read(names)}
    _show(Group(*_heading(spec), _tensors(spec, found)), screen)


def _provenance(path: str, screen: Screen) -> int:
    found = provenance_of(path)
    if found is None:
        raise CheckpointError(
            Problem(
                f"no {PROVENANCE} is beside {path}",
                "a run writes it beside each of its checkpoints",
                "name a checkpoint, or the folder, of a run",
            )
        )
    screen.write("\n".join((path, *chain(found))) + "\n")
    return 0


def _compare(one: CheckpointReader, other: CheckpointReader, screen: Screen) -> int:
    found = list(differences(one, other))
    paths = [Text(f"{label}: {reader.spec().path}") for label, reader in _labelled(one, other)]
    if not found:
        _show(Group(*paths, Text("no difference")), screen)
        return SAME
    counted = Text(f"{len(found)} tensors differ" if len(found) > 1 else "1 tensor differs")
    _show(Group(*paths, _differing(found), counted), screen)
    return DIFFERENT


def _labelled(
    one: CheckpointReader, other: CheckpointReader
) -> tuple[tuple[str, CheckpointReader], ...]:
    return ("first", one), ("second", other)


def _heading(spec: CheckpointSpec) -> Iterator[Text]:
    total = sum(byte_count(each) or 0 for each in spec.tensors.values())
    step = "" if spec.step is None else f", step {spec.step}"
    yield Text(spec.path)
    yield Text(f"{spec.format}{step}: {len(spec.tensors)} tensors, {total:,} bytes")
    yield Text(spec.digest)


def _tensors(spec: CheckpointSpec, found: Mapping[str, Statistics]) -> Table:
    also = {name: alias for alias, name in spec.aliases.items()}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("tensor", "shape", "dtype"):
        table.add_column(heading, overflow="fold")
    table.add_column("bytes", justify="right")
    table.add_column("class")
    for heading in ("min", "max", "mean", "NaN") if found else ():
        table.add_column(heading, justify="right")
    if also:
        table.add_column("also called", overflow="fold")
    for name, tensor in spec.tensors.items():
        size = byte_count(tensor)
        cells = [
            name,
            "x".join(map(str, tensor.shape)) or "scalar",
            tensor.dtype,
            "" if size is None else f"{size:,}",
            state_class(name, also.get(name, name), spec.tensors).value,
        ]
        of = found.get(name)
        if of is not None:
            cells += [_number(each) for each in (of.minimum, of.maximum, of.mean)]
            cells.append(f"{of.nan:,}")
        elif found:
            cells += [""] * 4
        if also:
            cells.append(also.get(name, ""))
        style = "red" if of is not None and of.nan else ""
        table.add_row(*(Text(cell, style=style) for cell in cells))
    return table


def _differing(found: Sequence[Difference]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("tensor", overflow="fold")
    table.add_column("differs", overflow="fold")
    for each in found:
        table.add_row(Text(each.name), Text(each.what))
    return table


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _show(content: RenderableType, screen: Screen) -> None:
    """Shows a table on a terminal; elsewhere the same as text, wide enough to fold nothing."""
    console = Console(width=100_000, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(content)
    lines = (line.rstrip() for line in capture.get().splitlines())
    screen.show(content, "\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
