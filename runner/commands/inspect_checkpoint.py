"""`runner inspect`: lists the tensors of a checkpoint of any format, or the differences of two.

PATH is a run directory, a directory of checkpoints, a TensorFlow prefix, a SavedModel, a file of
Keras, PyTorch, Flax, safetensors, NumPy or word vectors, a directory of Orbax, hf://ORG/REPO, or an
MLflow URI; also at gs://, https:// and the like. Exit code: 0, or 1 when two checkpoints
differ, 2 when a path or its checkpoint cannot be read.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from runner.checkpoints.inspection import Checkpoint, Statistics, diff, statistics
from runner.checkpoints.locate import LATEST, checkpoint_paths, is_mlflow_uri
from runner.checkpoints.open import open_reader
from runner.checkpoints.reader import CheckpointSpec, TensorSpec, is_number, is_read
from runner.config.choices import WARM_STARTED, StateClass
from runner.config.schema import TrackingConfig
from runner.console import Listing, Screen, as_text, plural, shaped, sized
from runner.errors import CheckpointError, ConfigError, RunnerError
from runner.planning.variables import classify
from runner.runs.provenance import chain, provenance_of
from runner.runs.run_directory import PROVENANCE
from runner.system.imports import without_import_notes
from runner.tracking import open_store

# The exit codes, as `diff` has them.
_SAME, _DIFFERENT, _UNREADABLE = 0, 1, 2
_FLAGS = {
    "--stats": "read all values: min, max, mean, NaN count",
    "--all": "a row for every tensor: optimizer slots, counters and seeds too",
    "--digest": "the SHA-256 that a run pins a source by; reads all of a file without checksums",
    "--provenance": "where the variables of a run's checkpoint came from, back to the first source",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describes the arguments of `runner inspect`."""
    parser.add_argument("path", metavar="PATH")
    parser.add_argument("other", metavar="OTHER", nargs="?", help="compare the two")
    for name, meaning in _FLAGS.items():
        parser.add_argument(name, action="store_true", help=meaning)
    parser.add_argument(
        "--which", default=LATEST, help="latest (default), best or a step of a directory"
    )
    parser.add_argument(
        "--tracking",
        metavar="URI",
        default=os.environ.get("MLFLOW_TRACKING_URI"),
        help="the MLflow store of runs:/ and models:/ paths; default $MLFLOW_TRACKING_URI",
    )


def run(arguments: argparse.Namespace, screen: Screen | None = None) -> int:
    """Shows what `runner inspect` is asked for.

    Returns:
      1 when two checkpoints differ, and otherwise 0.

    Raises:
      RunnerError: with the exit code 2, when a path or its checkpoint cannot be read.
    """
    try:
        return _inspect(arguments, screen or Screen())
    except RunnerError as error:
        error.exit_code = _UNREADABLE
        raise


def _inspect(arguments: argparse.Namespace, screen: Screen) -> int:
    paths = [path for path in (arguments.path, arguments.other) if path is not None]
    listing = [flag for flag in _FLAGS if getattr(arguments, flag.strip("-"))]
    if len(paths) > 1 and listing:
        cause = "two checkpoints are compared, value by value, and not listed"
        raise ConfigError.of(f"{' and '.join(listing)} with OTHER", cause, "name one checkpoint")
    with without_import_notes():  # Some formats import TensorFlow.
        tracked = arguments.tracking is not None and any(map(is_mlflow_uri, paths))
        artifacts = open_store(TrackingConfig(uri=arguments.tracking), {}) if tracked else None
        resolved = [checkpoint_paths(path, arguments.which, artifacts=artifacts) for path in paths]
        if arguments.provenance:
            _show_provenance(resolved[0][0], screen)
            return _SAME
        checkpoints = [Checkpoint(open_reader(path)) for (path,) in resolved]
    if len(checkpoints) == 1:
        _list(checkpoints[0], arguments, screen)
        return _SAME
    differences = diff(*checkpoints)
    _show(differences, screen)
    return _DIFFERENT if differences else _SAME


def kinds_of(spec: CheckpointSpec) -> dict[str, str]:
    """Returns tensor -> the noun of what it holds, as its names and its dtype tell.

    An optimizer's state is what is named after its count of steps (`Adam/iterations`, hence also
    `Adam/loss_scale/...`), extends the name of another tensor (`kernel/Adam`), or is in a part of
    the path that is called an optimizer. Keras 3 saves the model's weights there too.
    """
    alias_of = {name: alias for alias, name in spec.aliases.items()}
    optimizers = {count[1] for count in map(_STEP_COUNT.fullmatch, spec.tensors) if count}
    kinds = {}
    for name, tensor in spec.tensors.items():
        names = (name, alias_of.get(name, name))
        nouns = (noun for pattern, noun in _OTHERS if any(map(pattern.fullmatch, names)))
        before = _prefixes(name)
        slot = not optimizers.isdisjoint(before) or not spec.tensors.keys().isdisjoint(before)
        slot |= bool(_OF_OPTIMIZER.fullmatch(name))
        if tensor.dtype == "variant":
            kinds[name] = "input position"
        else:
            model = not slot or "_trainable_variables" in name.split("/")
            kinds[name] = next(nouns, "") or classify(names[1], model=model).noun
    return kinds


def _prefixes(name: str) -> set[str]:
    parts = name.split("/")
    return {"/".join(parts[:count]) for count in range(1, len(parts))}


_WEIGHTS = tuple(state.noun for state in WARM_STARTED)
_STEP_COUNT = re.compile(r"(.+)/(_?iterations?|iter)")
_OF_OPTIMIZER = re.compile(
    r"(.*/)?([^/]*optimizer|optimizer_weights|opt_state)/.*|(.*/)?beta[12]_power[^/]*"
)
# What `classify`, which knows the variables of runs, does not.
_OTHERS = (
    (re.compile(r"(.*/)?metrics/.*"), "metric variable"),
    (re.compile(r"(.*/)?(_state_var|seed_generator/vars/\d+)"), StateClass.random_state.noun),
    (re.compile(r"step"), StateClass.global_step.noun),
    (
        re.compile(r"(.*[./])?(running_(mean|var)|num_batches_tracked)|batch_stats/.*"),
        StateClass.batch_norm.noun,
    ),
)


def _list(checkpoint: Checkpoint, parsed: argparse.Namespace, screen: Screen) -> None:
    """Shows a summary of a checkpoint, its path, and a table of its tensors by their aliases.

    Optimizer slots and the like have one row together, unless all are asked for.
    """
    spec, nouns = checkpoint.spec, kinds_of(checkpoint.spec)
    numbers: dict[str, Statistics] = {}
    if parsed.stats:
        names = [
            name
            for name, tensor in spec.tensors.items()
            if tensor.dtype != "variant" and is_read(tensor.dtype)
        ]
        numbers = {name: statistics(value) for name, value in checkpoint.reader.read(names)}
    kinds: dict[str, list[TensorSpec]] = {_MODEL: []}
    for name, tensor in spec.tensors.items():
        kind = _MODEL if nouns[name] in _WEIGHTS else nouns[name]
        kinds.setdefault(kind, []).append(tensor)
    aliases = {name: alias for alias, name in spec.aliases.items()}
    ties: dict[str, list[str]] = {}
    for other, name in spec.tied.items():
        ties.setdefault(name, []).append(other)
    rows: list[list[str]] = []
    counts = []
    for kind, tensors in kinds.items():
        size = sum(tensor.bytes for tensor in tensors)
        counts.append(f"{plural(len(tensors), kind)} ({sized(size)})")
        if parsed.all or kind == _MODEL or len(tensors) == 1:
            for tensor in tensors:
                alias = aliases.get(tensor.name, tensor.name)
                cells = _cells(tensor, nouns[tensor.name], numbers.get(tensor.name))
                rows.append(
                    [
                        " = ".join((alias, *ties.get(tensor.name, ()))),
                        *cells,
                        tensor.name if parsed.all and alias != tensor.name else "",
                    ]
                )
        else:
            nan = sum(numbers[tensor.name].nan for tensor in tensors if tensor.name in numbers)
            cells = [plural(len(tensors), kind), "", f"{size:,}", kind, "", "", ""]
            rows.append([*cells, f"{nan:,}" if numbers else "", ""])
    step = "" if spec.step is None else f", step {spec.step}"
    lines = [f"{spec.format}{step}: {', '.join(counts)}", spec.path]
    if parsed.digest:
        lines.append(spec.digest)
    table = Listing(_COLUMNS, [_with_nan_in_red(row) for row in rows], _NUMBERS)
    _show(Group(*map(Text, lines), table), screen)


def _cells(tensor: TensorSpec, kind: str, numbers: Statistics | None) -> list[str]:
    # Strings have no fixed size, nor has a `variant`, the position in a run's training data.
    size = f"{tensor.bytes:,}" if is_number(tensor.dtype) else ""
    described = ["", "", "", ""]
    if numbers is not None:
        values = (numbers.minimum, numbers.maximum, numbers.mean)
        described = ["" if value is None else f"{value:.6g}" for value in values]
        described.append(f"{numbers.nan:,}")
    return [shaped(tensor.shape, tensor.dtype), size, kind, *described]


_MODEL = "model variable"
_COLUMNS = ("tensor", "shape", "bytes", "class", "min", "max", "mean", "NaN", "stored as")
_NUMBERS = ("bytes", "min", "max", "mean", "NaN")


def _with_nan_in_red(row: Sequence[str]) -> Sequence[str | Text]:
    if row[_COLUMNS.index("NaN")] in ("", "0"):
        return row
    return [Text(cell, style="red") for cell in row]


def _show_provenance(path: str, screen: Screen) -> None:
    provenance = provenance_of(path)
    if provenance is None:
        raise CheckpointError.of(
            f"no {PROVENANCE} is beside {path}",
            "a run writes it beside each of its checkpoints",
            "name a checkpoint of a run, or its run directory",
        )
    screen.write("\n".join((path, *chain(provenance))) + "\n")


def _show(content: RenderableType, screen: Screen) -> None:
    """Shows a table on a terminal; elsewhere prints it, wide enough that nothing is folded."""
    screen.show(content, as_text(content))
