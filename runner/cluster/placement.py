"""Which task of a cluster holds which variable, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runner.restoration import dtypes
from runner.restoration.variables import VariableSpec


def placement_lines(
    specs: Sequence[VariableSpec], devices: Mapping[str, str], strategy: str, *, full: bool
) -> list[str]:
    """Returns a line for each task with how much it holds.

    Args:
      specs: the variables.
      devices: variable name -> device.
      strategy: how they were spread.
      full: whether to name every variable too.
    """
    by_device: dict[str, list[VariableSpec]] = {}
    for spec in specs:
        by_device.setdefault(devices[spec.tensor.name], []).append(spec)
    lines = [f"placement on the cluster ({strategy}):"]
    for device in sorted(by_device):
        held = by_device[device]
        size = sum(_bytes(spec) for spec in held)
        lines.append(f"  {device}: {len(held)} variables, {size:,} bytes")
        if full:
            lines += [f"    {spec.tensor.name}  {_bytes(spec):,} bytes" for spec in held]
    return lines


def _bytes(spec: VariableSpec) -> int:
    return dtypes.size_in_bytes(spec.tensor.shape, spec.tensor.dtype)
