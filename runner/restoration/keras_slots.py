"""The variables of a Keras optimizer, which name the numbered ones in a weights file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from runner.checkpoints.reader import CheckpointSpec

_OPTIMIZER = "optimizer"


@dataclass(frozen=True)
class Slots:
    """The variables of a built Keras optimizer, without its learning rate.

    Attributes:
      kind: the optimizer's class, e.g. `AdamW`.
      shapes: name -> shape, in the order of creation. Slots are named after their variables.
      trained: the model's trainable variables, in the model's order.
    """

    kind: str
    shapes: Mapping[str, tuple[int, ...]]
    trained: Sequence[str]

    def named(self, spec: CheckpointSpec) -> CheckpointSpec:
        """Returns the spec of a weights file with the names of the optimizer's tensors as aliases.

        There are none if the file's optimizer is of another class or trained other variables. The
        file only numbers its variables, so all shapes must agree.
        """
        counted = re.sub(r"_\d+$", "", spec.layers.get(_OPTIMIZER, ""))
        if counted.replace("_", "").lower() != self.kind.lower():
            return spec
        numbered = {
            int(number): tensor
            for tensor in spec.tensors
            if (number := tensor.removeprefix(f"{_OPTIMIZER}/vars/")).isdecimal()
        }
        tensors = [numbered[number] for number in sorted(numbered)]
        names = self._in_file()
        if len(tensors) == len(names) + 1:
            del tensors[1]  # The learning rate, unless that is a schedule.
        shapes = [spec.tensors[each].shape for each in tensors]
        if shapes != [self.shapes[each] for each in names]:
            return spec
        return replace(spec, aliases={**spec.aliases, **dict(zip(names, tensors, strict=True))})

    def _in_file(self) -> list[str]:
        """Returns the names in the order of the file, in which Keras trains the whole model."""
        order = {name: at for at, name in enumerate(self.trained)}
        found = []
        for block in self._blocks():
            found += sorted(block, key=lambda name: order.get(_owner(name, order), -1))
        return found

    def _blocks(self) -> Iterator[list[str]]:
        """Yields the names that the optimizer created in a pass over the variables, or at once."""
        passed: dict[str, None] = {}
        block: list[str] = []
        for name in self.shapes:
            owner = _owner(name, self.trained)
            again = owner in passed and owner != next(reversed(passed))
            if block and (again or not owner):
                yield block
                block, passed = [], {}
            if owner:
                passed[owner] = None
            block.append(name)
        yield block


def _owner(name: str, variables: Sequence[str] | Mapping[str, int]) -> str:
    """Returns the variable that a slot is named after; empty if it belongs to none."""
    owner = name
    while owner and owner not in variables:
        owner = owner.rpartition("/")[0]
    return owner
