"""Which task of a cluster holds which variable, in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runner.restoration import dtypes
from runner.restoration.plan import RestorationPlan
from runner.restoration.variables import VariableSpec


@dataclass(frozen=True)
class VariablePlacement:
    """Where the variables of a graph are.

    Attributes:
      strategy: how they were spread.
      devices: variable name -> device, such as `/job:ps/task:0`.
    """

    strategy: str
    devices: Mapping[str, str]

    @property
    def title(self) -> str:
        """What a report of it is headed with."""
        return f"placement on the cluster ({self.strategy})"

    def shares(self, plan: RestorationPlan) -> list[Share]:
        """Returns what each device holds of a plan's variables, by the device's name."""
        by_device: dict[str, list[VariableSpec]] = {}
        for each in plan.assignments:
            by_device.setdefault(self.devices[each.variable.name], []).append(each.variable)
        return [Share(device, tuple(held)) for device, held in sorted(by_device.items())]

    def lines(self, plan: RestorationPlan, *, full: bool) -> list[str]:
        """Returns a heading, and a line for each device with how much it holds.

        Args:
          plan: the plan for the variables.
          full: whether to name every variable too.
        """
        lines = [f"{self.title}:"]
        for share in self.shares(plan):
            lines.append(f"  {share.device}: {share.count}, {share.bytes:,} bytes")
            if full:
                lines += [f"    {each.name}  {bytes_of(each):,} bytes" for each in share.variables]
        return lines


@dataclass(frozen=True)
class Share:
    """The variables of one device."""

    device: str
    variables: tuple[VariableSpec, ...]

    @property
    def bytes(self) -> int:
        """How much they are."""
        return sum(bytes_of(each) for each in self.variables)

    @property
    def count(self) -> str:
        """How many they are, in words."""
        return f"{len(self.variables):,} variable{'s' * (len(self.variables) != 1)}"


def bytes_of(variable: VariableSpec) -> int:
    """Returns the bytes of a variable; 0 for text."""
    return dtypes.size_in_bytes(variable.tensor.shape, variable.tensor.dtype)
