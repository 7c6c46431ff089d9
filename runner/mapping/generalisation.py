"""Rules for many pairs of names: numbers become parts with arithmetic."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from runner.rules.patterns import REST, compile_pattern, substitute

# Numbers, and in the names of variables letters that count behind a number: `block2a`.
_NUMBER = re.compile(r"\d+")
_COUNTED = re.compile(r"\d+|(?<=\d)[a-z](?=[_/])")
_STEPS = re.compile(r" \| .*", re.DOTALL)
_SLOPES = (1, 2, 3, 4, 5, 6, -1, -2, -3, -4)


def predict(key: str, value: str, name: str) -> str | None:
    """Returns what a rule makes of a name, None if it does not match."""
    parts = compile_pattern(key, value).match(name)
    if parts is None:
        return None
    source, steps = _split_steps(substitute(value, parts))
    return source + parts[REST].replace("/", source[-1] if source[-1:] in "./" else ".") + steps


def generalise(
    pairs: Mapping[str, str], whole: Mapping[str, str], forbidden: Iterable[str]
) -> dict[str, str]:
    """Returns few rules that give each name its value, and match none of the forbidden names.

    Args:
      pairs: beginnings of names that end in `/`, or whole names -> values, perhaps with steps.
      whole: the same, before what names have in common at their ends was left out.
      forbidden: names of the same kind that no rule may match.
    """
    barred = [*forbidden]
    rules = _numbered(pairs)
    while True:
        ordered = dict(sorted(rules.items(), key=_specificity))
        wrong = _wrong(ordered, whole, barred)
        if not wrong:
            return ordered
        # A rule that says too much makes way for the names that no other rule is right for.
        rules = {key: value for key, value in ordered.items() if key not in wrong}
        rest = dict(rules)
        for name, value in whole.items():
            if any(predict(key, ordered[key], name) is not None for key in wrong):
                predicted = (predict(key, others, name) for key, others in rest.items())
                if next((one for one in predicted if one is not None), None) != value:
                    rules[name] = value


def _specificity(rule: tuple[str, str]) -> tuple[int, int, int]:
    """Sorts rules of inner modules first, and of these such with few parts."""
    return -rule[0].count("/"), rule[0].count("{"), -len(rule[0])


def _wrong(
    rules: Mapping[str, str], whole: Mapping[str, str], forbidden: Sequence[str]
) -> set[str]:
    """Returns the rules that give a name a wrong value, or match a forbidden one."""
    patterns = [(key, value, compile_pattern(key, value)) for key, value in rules.items()]
    wrong = set[str]()
    for name in (*whole, *forbidden):
        for key, value, pattern in patterns:
            if pattern.match(name) is None:
                continue
            if key != name and predict(key, value, name) != whole.get(name):
                wrong.add(key)
            break
    return wrong


def _split_steps(value: str) -> tuple[str, str]:
    source = _STEPS.sub("", value)
    return source, value[len(source) :]


def _numbered(pairs: Mapping[str, str]) -> dict[str, str]:
    groups: dict[tuple[str, str, str], list[tuple[str, str]]] = defaultdict(list)
    for key, value in pairs.items():
        source, steps = _split_steps(value)
        skeleton = _COUNTED.sub(lambda cell: "#" if cell[0].isdigit() else "@", key)
        groups[skeleton, _NUMBER.sub("#", source), steps].append((key, value))
    rules: dict[str, str] = {}
    for group in groups.values():
        rules |= _rules(group)
    return rules


def _rules(group: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Returns the rules of pairs that differ in numbers alone."""
    if len(group) == 1:
        return dict(group)
    inputs = [[_count(cell) for cell in _COUNTED.findall(key)] for key, _ in group]
    if (rule := _one_rule(group, inputs)) is not None:
        return dict([rule])
    # One number of the key apart: as few rules as possible.
    best = dict(group)
    for column in range(len(inputs[0])):
        parts: dict[int, list[tuple[str, str]]] = defaultdict(list)
        for pair, numbers in zip(group, inputs, strict=True):
            parts[numbers[column]].append(pair)
        if len(parts) == 1:
            continue
        for value, part in parts.items():
            rest = [pair for other, pairs in parts.items() if other != value for pair in pairs]
            if len(part) < len(rest) and (rule := _one_rule(rest)) is not None:
                best = min(best, dict([rule]) | _rules(part), key=len)
        if len(parts) < len(group):
            rules: dict[str, str] = {}
            for part in parts.values():
                rules |= _rules(part)
            best = min(best, rules, key=len)
    return best


def _one_rule(
    group: Sequence[tuple[str, str]], inputs: Sequence[Sequence[int]] | None = None
) -> tuple[str, str] | None:
    """Returns the one rule of pairs that differ in numbers alone, or None."""
    inputs = inputs or [[_count(cell) for cell in _COUNTED.findall(key)] for key, _ in group]
    values = [_split_steps(value)[0] for _, value in group]
    outputs = [[int(cell) for cell in _NUMBER.findall(value)] for value in values]
    formulas = []
    for column in zip(*outputs, strict=True):
        formula = _formula(inputs, list(column))
        if formula is None:
            return None
        formulas.append(formula)
    return _rule(*group[0], inputs, formulas) if len(group) > 1 else group[0]


def _count(cell: str) -> int:
    return int(cell) if cell.isdigit() else ord(cell) - ord("a")


# A number of a value as a sum: multiples of the key's numbers, (column, slope), and a constant.
_Formula = tuple[tuple[tuple[int, int], ...], int]


def _formula(inputs: Sequence[Sequence[int]], output: Sequence[int]) -> _Formula | None:
    if len({*output}) == 1:
        return (), output[0]
    columns = range(len(inputs[0]) if inputs else 0)
    varying = [column for column in columns if len({row[column] for row in inputs}) > 1]
    single = [((column, slope),) for slope in _SLOPES for column in varying if slope > 0]
    double = [
        ((two, 1), (one, slope))
        for slope in _SLOPES
        for one in varying
        for two in varying
        if one != two
    ]
    for terms in (*single, *double):
        offsets = {
            value - sum(row[column] * slope for column, slope in terms)
            for row, value in zip(inputs, output, strict=True)
        }
        if len(offsets) == 1:
            return terms, offsets.pop()
    return None


def _rule(
    key: str, value: str, inputs: Sequence[Sequence[int]], formulas: Sequence[_Formula]
) -> tuple[str, str]:
    """Writes the rule of a group from one of its pairs."""
    varying = [len({row[column] for row in inputs}) > 1 for column in range(len(inputs[0]))]
    cells = [*_COUNTED.finditer(key)]
    names = _names(
        key, [cell.start() for cell, varies in zip(cells, varying, strict=True) if varies]
    )
    letters = {column for column, cell in enumerate(cells) if not cell[0].isdigit()}
    named = iter(names)
    parts = {column: next(named) for column, varies in enumerate(varying) if varies}
    pattern, end = "", 0
    for column, cell in enumerate(cells):
        pattern += key[end : cell.start()]
        pattern += f"{{{parts[column]}}}" if column in parts else cell[0]
        end = cell.end()
    source, steps = _split_steps(value)
    numbers = iter(formulas)
    filled = _NUMBER.sub(lambda cell: _written(next(numbers), parts, letters), source)
    return pattern + key[end:], filled + steps


def _written(formula: _Formula, parts: Mapping[int, str], letters: set[int]) -> str:
    terms, constant = formula
    if not terms:
        return str(constant)
    text = ""
    for column, slope in terms:
        name = parts[column]
        if column in letters:
            name, constant = f"ord({name})", constant - slope * ord("a")
        times = "" if abs(slope) == 1 else f"{abs(slope)}*"
        text += f"{'-' if slope < 0 else '+'}{times}{name}"
    return f"{{{text.lstrip('+')}{f'{constant:+d}' if constant else ''}}}"


def _names(key: str, places: Sequence[int]) -> list[str]:
    """Returns a letter for each part: the first one of the word before it, where that is free."""
    names: list[str] = []
    for place in places:
        word = re.search(r"([a-zA-Z])[a-zA-Z]*[^a-zA-Z]*$", key[:place])
        choices = [word[1].lower()] if word else []
        names.append(next(one for one in (*choices, *"nkijmabcdefgh") if one not in names))
    return names
