"""Writes trained values under the names and in the layout of the checkpoint they came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from runner.checkpoints.open import open_reader
from runner.planning.plan import RestorationPlan
from runner.planning.variables import EMA_SUFFIX
from runner.restoration.inversion import invert
from runner.system.atomic_files import unfinished
from runner.system.signals import Interruption
from runner.training.evaluate_run import Weights
from runner.training.run_sources import Sources

FILE = "model.safetensors"


def export_names(
    weights: Weights, plan: RestorationPlan, scaffold: str, *, sources: Sources, folder: Path
) -> str:
    """Writes the tensors of a scaffold's checkpoint with the values of a run's checkpoint.

    Tensors and rows that no variable of the model takes are as in the source, see `invert`.

    Args:
      weights: the run's checkpoint.
      plan: the plan of a fresh start.
      scaffold: the scaffold.
      sources: opens its checkpoint.
      folder: what to make; it must not exist.

    Returns:
      What is left out, in words; empty if nothing is.

    Raises:
      ConfigError: when nothing is restored from the scaffold.
      CheckpointError: when a checkpoint cannot be read, or the source has changed.
    """
    import safetensors.numpy  # A run that exports nothing need not wait for it.

    inverse = invert(
        plan, scaffold, _values(plan, weights), open_reader=lambda: sources.open(scaffold)
    )
    tensors = dict(inverse.tensors)
    with unfinished(folder) as temporary:
        temporary.mkdir()
        # Transformers reads a file only if it says so.
        safetensors.numpy.save_file(tensors, temporary / FILE, metadata={"format": "pt"})
        weights.copy_provenance(temporary)
        Interruption.check_swallowed()
    return inverse.lost_notice


def _values(plan: RestorationPlan, weights: Weights) -> dict[str, NDArray[Any]]:
    """Returns the values of the variables in a run's checkpoint, averages where they count."""
    reader = open_reader(weights.prefix)
    spec, tensors = reader.spec(), {}
    for variable in (assignment.variable for assignment in plan.assignments):
        average = spec.find(variable.full_name + EMA_SUFFIX)
        uses_average = average is not None and weights.config.train.evaluates_averages
        tensor = average if uses_average else spec.find(variable.full_name)
        if tensor is not None:
            tensors[variable.name] = tensor.name
    read = dict(reader.read([*dict.fromkeys(tensors.values())]))
    values = {}
    for variable in (assignment.variable for assignment in plan.assignments):
        if variable.name in tensors:
            value = read[tensors[variable.name]]
            if variable.partition is not None:
                begins = zip(variable.partition.offset, variable.tensor.shape, strict=True)
                value = value[tuple(slice(at, at + size) for at, size in begins)]
            values[variable.name] = value
    return values
