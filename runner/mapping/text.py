"""The YAML of a proposal, with the reason of each decision as a comment."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import yaml

from runner.console import plural, printable, some_of
from runner.mapping.correspondence import Computed, Correspondence, Pair
from runner.rules.translator import Rules

_MOST_SHOWN = 12


def document(
    scaffolds: Mapping[str, Mapping[str, Any]], correspondences: Mapping[str, Correspondence]
) -> str:
    """Returns the YAML of scaffolds; comments tell reasons, and what is not decided.

    Without scaffolds there are comments alone.
    """
    if not scaffolds:
        questions = [line for one in correspondences.values() for line in _open_questions(one)]
        lines = ["No rules: a plan would refuse them, or weights would be left out.", *questions]
        return "".join(f"# {printable(line)}\n" for line in lines)
    lines = ["scaffolds:"]
    for name, keys in scaffolds.items():
        lines.append(f"  {name}:")
        for key, value in keys.items():
            if key != "rules":
                lines.append(f"    {_line(key, value)}")
                if key == "convert":
                    lines[-1] += f"  # {correspondences[name].layout}"
        if "rules" in keys:
            lines += ["    rules:", *_rules(keys["rules"], correspondences[name])]
        lines += [
            f"    # {printable(line)}".rstrip() for line in _open_questions(correspondences[name])
        ]
    return "\n".join(lines) + "\n"


def _line(key: str, value: Any) -> str:
    wide = 10**6
    if not isinstance(value, str):
        flow = yaml.safe_dump([value], default_flow_style=True, width=wide, allow_unicode=True)
        return f"{key}: {flow.strip()[1:-1]}"
    line: str = yaml.safe_dump({key: value}, width=wide, allow_unicode=True)
    return line.strip()


def _rules(rules: Mapping[str, str], correspondence: Correspondence) -> Iterator[str]:
    used: dict[str, list[str]] = {key: [] for key in rules}
    table = Rules(rules)
    for name in (*correspondence.pairs, *correspondence.constants):
        if match := table.match([name]):
            used[match[0].key].append(name)
    lines = [_line(key, value) for key, value in rules.items()]
    width = min(max(map(len, lines)), 80)
    for key, line in zip(rules, lines, strict=True):
        pairs = [correspondence.pairs[name] for name in used[key] if name in correspondence.pairs]
        reasons = Counter(reason for pair in pairs for reason in pair.reasons)
        computed = [pair.computed for pair in pairs if pair.computed]
        parts = [_computed(computed), *(reason for reason, _ in reasons.most_common())]
        shown = ", ".join(filter(None, parts)) or "the file has none"
        yield f"      {line:{width}}  # {plural(len(used[key]), 'variable')}: {printable(shown)}"


def _computed(computed: Sequence[Computed]) -> str:
    """Returns how values decide on the variables of one rule."""
    if not computed:
        return ""
    records = [*dict.fromkeys(one.record for one in computed if one.record)]
    readers = [*dict.fromkeys(one.reader for one in computed if one.reader)]
    parts = []
    if records:
        largest = max(one.relative for one in computed if one.record)
        parts.append(f"within {largest:.0e} of {some_of(records, 1)}")
    if readers:
        parts.append(f"needed by {some_of(readers, 1)}")
    closest = min(one.next for one in computed)
    rival = f"the next candidate {closest:.1g} away" if math.isfinite(closest) else "no other fits"
    return f"computed: {', '.join([*parts, rival])}"


def _open_questions(correspondence: Correspondence) -> Iterator[str]:
    unsure = [pair for pair in correspondence.pairs.values() if not pair.is_certain]
    if unsure:
        yield f"Not decided: {plural(len(unsure), 'variable')} without a rule."
        deciders = "A reference, a hint" if correspondence.undecided is None else "A hint"
        yield f"{deciders} or a rule of your own decides."
    groups: dict[str, list[Pair]] = defaultdict(list)
    for pair in unsure:
        groups[_skeleton([pair.variable, *_options(pair)])].append(pair)
    for group in [*groups.values()][:_MOST_SHOWN]:
        pair, options = group[0], _options(group[0])
        more = f" and {len(group) - 1} like it" if len(group) > 1 else ""
        yield f"- {pair.variable}{more}: {' or '.join(options[:4])}"
        if len(options) > 4:
            yield f"  or one of {len(options) - 4} more"
        if len(pair.candidates) == 1:
            yield "  nothing but the shape speaks for it"
        else:
            hint = _hint(pair)
            yield "  nothing decides" + (f"; for example --hint '{hint}'" if hint else "")
    if len(groups) > _MOST_SHOWN:
        yield f"- and {len(groups) - _MOST_SHOWN} more sets of such variables"
    open_ = {pair.variable for pair in unsure}
    by_names = [name for name in correspondence.undecided or () if name not in open_]
    for title, names in (
        ("Not decided, with a rule", by_names),
        ("No tensor fits", correspondence.left),
        ("No variable takes", correspondence.unused),
        ("No output reads", correspondence.unread),
    ):
        if names:
            yield f"{title}: {_listed(names)}"
    unread = {name: code.kind for name, code in correspondence.codes.items()}
    for title, some in (("Not a weight", correspondence.others), ("Unread", unread)):
        for kind in dict.fromkeys(some.values()):
            names = tuple(name for name in some if some[name] == kind)
            yield f"{title} ({kind}): {_listed(names)}"


def _options(pair: Pair) -> list[str]:
    options = (
        (" and ".join(option.tensors) or option.step) + (f" | {option.cut}" if option.cut else "")
        for option in pair.candidates
    )
    # Several may differ in their last step alone.
    return [*dict.fromkeys(options)]


def _skeleton(names: Sequence[str]) -> str:
    return re.sub(r"\d+", "#", " ".join(names))


def _hint(pair: Pair) -> str:
    """Returns a hint that would decide, in the words in which names differ; none for one tensor."""
    names = [" and ".join(option.tensors) or option.step for option in pair.candidates[:2]]
    if names[0] == names[1]:
        return ""
    first, second = (re.split(r"[./]", name) for name in names)
    word = next((a for a, b in zip(first, second, strict=False) if a != b), first[-1])
    parts = pair.variable.split("/")
    return f"{word}={parts[-2] if len(parts) > 1 else parts[-1]}"


def _listed(names: Iterable[str]) -> str:
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        groups[_skeleton([name])].append(name)
    shown = [
        members[0] + (f" and {len(members) - 1} like it" if len(members) > 1 else "")
        for members in groups.values()
    ]
    return some_of(shown, _MOST_SHOWN)
