"""Names that Keras counts up, `dense_3`: positions take the place of their numbers, or nothing."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

_COUNTED = re.compile(r"_\d+$")
# Tells two names apart, and is neither a word nor a number.
_MARK = "~"


def by_position(variables: Iterable[str], automatic: Collection[str]) -> dict[str, str]:
    """Returns variable -> its name with the layers that Keras counted counted in their order.

    Keras counts the layers of a process; the first one of a model may be `dense_7`.
    """
    names: dict[tuple[str, str], str] = {}
    counts: dict[tuple[str, str], int] = {}
    result = {}
    for variable in variables:
        around = ""
        for part in variable.split("/"):
            stem = _COUNTED.sub("", part)
            if part in automatic and (around, part) not in names:
                number = counts[around, stem] = counts.get((around, stem), -1) + 1
                names[around, part] = f"{stem}_{number}" if number else stem
            around += names.get((around, part), part) + "/"
        result[variable] = around.rstrip("/")
    return result


def without_numbers(names: Iterable[str], automatic: Collection[str]) -> dict[str, str]:
    """Returns names in which the numbers that Keras has counted, or could have, are no evidence."""
    stems = {_COUNTED.sub("", part) for part in automatic}
    marks: dict[str, str] = {}
    return {
        name: "/".join(
            _COUNTED.sub("", part) + marks.setdefault(part, _MARK * (len(marks) + 1))
            if _COUNTED.sub("", part) in stems
            else part
            for part in name.split("/")
        )
        for name in names
    }


def known_by(
    variables: Iterable[str],
    tensors: Mapping[str, str],
    *,
    automatic: Collection[str],
    places: Mapping[str, str | None],
) -> tuple[dict[str, str], dict[str, str]]:
    """Returns variable -> how it is known, and the same of tensors, for a file of Keras's names.

    Args:
      variables: the model's variables, in its order.
      tensors: the file's -> their names in words.
      automatic: the names of layers that Keras counted, or could have.
      places: variable -> the tensor in its place; empty where that is not certain, None where
        names tell.
    """
    known = by_position(variables, automatic)
    held = {tensor: known[name] for name, tensor in places.items() if tensor and name in known}
    others = without_numbers((name for name in known if not places.get(name)), automatic)
    rest = {name: words for name, words in tensors.items() if name not in held}
    marked = without_numbers(rest.values(), automatic)
    return {**known, **others}, {**{name: marked[rest[name]] for name in rest}, **held}
