"""Writes the page of the Python API from the docstrings.

python docs/api.py > docs/reference/api.md
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from hydra.utils import get_object

# Heading -> what is below it: a name, with `.` before members of the class that are listed too.
PAGE: dict[str, tuple[str, ...]] = {
    "Runs from Python": (
        "runner.run",
        "runner.fit",
        "runner.sweep",
        "runner.open_run",
        "runner.Result .metrics .best .mlflow_run_id .model",
        "runner.SweepResult .frame .best .best_run",
        "runner.RunnerError",
        "runner.validate",
        "runner.run_experiment",
        "runner.training.context.RunContext",
        "runner.current_run",
        "runner.CurrentRun .*",
    ),
    "Warm start without a run": (
        "runner.warm_start",
        "runner.plan",
        "runner.propose",
        "runner.Proposal",
        "runner.WarmStartPlan .to_html .to_json .provenance .write_provenance",
        "runner.prove",
        "runner.planning.comparison.Proof .agrees .first_difference .document",
        "runner.WarmStart",
        "runner.open_checkpoint",
        "runner.Checkpoint .*",
        "runner.checkpoints.diff",
    ),
    "Sessions": (
        "runner.MonitoredTrainingSession",
        "runner.Scaffold",
        "runner.SessionManager",
        "runner.CachedSession",
    ),
    "Experiments": (
        "runner.graph.contracts.Data .*",
        "runner.GraphSpec",
        "runner.TrainingInput",
    ),
    "Data sets": (
        "runner.inputs.FitData",
        "runner.inputs.Npz",
        "runner.inputs.TFRecord",
        "runner.inputs.GeneratorData",
    ),
    "Hooks": (
        "runner.hooks.EarlyStoppingHook",
        "runner.hooks.WallClockLimitHook",
        "runner.hooks.StepTimingHook",
        "runner.hooks.ProfileOnDemandHook",
    ),
}
INTRODUCTIONS = {
    "Runs from Python": "[Python and notebooks](../how-to/python.md) shows how they are used.",
    "Sessions": (
        "`MonitoredSession`, `SingularMonitoredSession`, `Supervisor`, `ChiefSessionCreator` and\n"
        "`WorkerSessionCreator` are TensorFlow's, extended by warm starts:\n"
        "[use sessions without a config](../how-to/sessions.md). `runner.estimator` is the\n"
        "original `tf.estimator`: [migrate an Estimator](../tutorials/estimator.md)."
    ),
    "Experiments": (
        "The interfaces for `data`, `model`, `loss` and `metrics` in a configuration, whose keys\n"
        "are in [its reference](configuration.md); `runner.RunConfig` is its type."
    ),
    "Data sets": (
        "A configuration names them by `_target_`, or takes them from a group: `data=npz`,\n"
        "`data=tfrecord`, `data=generator`."
    ),
}
_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields):$", re.MULTILINE)
_ENTRY = re.compile(r"^  (\S[^:\n]*): ", re.MULTILINE)
_INTERNAL = re.compile(
    r"\b(?:runner|collections|typing|pathlib|numpy|omegaconf)\.(?:\w+\.)*(?=[A-Z])"
)


def page() -> str:
    """Returns the page."""
    lines = [
        "# Python API",
        "",
        "All of `runner` is loaded on first use. Written by `docs/api.py`.",
    ]
    for heading, entries in PAGE.items():
        lines += ["", f"## {heading}"]
        if heading in INTRODUCTIONS:
            lines += ["", INTRODUCTIONS[heading]]
        for entry in entries:
            name, *members = entry.split(" .")
            lines += _described(name, get_object(name), members)
    return "\n".join(lines) + "\n"


def _described(name: str, value: Any, members: list[str]) -> Iterator[str]:
    """Yields the lines on a function or class, and on members of the class."""
    yield from ("", f"### `{name}`", "", "```python", _signature(name, value), "```", "")
    yield from _text(value)
    if members == ["*"]:
        members = [
            member
            for member, item in vars(value).items()
            if not member.startswith("_") and (callable(item) or isinstance(item, property))
        ]
    for member in members:
        item = inspect.getattr_static(value, member)
        is_function = inspect.isfunction(item)
        shown = _signature(member, item, method=True) if is_function else member
        described = list(_text(item if is_function else getattr(item, "fget", None) or item.func))
        yield from ("", f"**`{shown}`**  ", *described)


def _signature(name: str, value: Any, *, method: bool = False) -> str:
    shown: list[str] = []
    previous = None
    for parameter in [*inspect.signature(value).parameters.values()][1 if method else 0 :]:
        if parameter.kind is parameter.KEYWORD_ONLY and previous not in (
            parameter.KEYWORD_ONLY,
            parameter.VAR_POSITIONAL,
        ):
            shown.append("*")
        previous = parameter.kind
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(previous, "")
        kind = inspect.formatannotation(parameter.annotation).strip("'")
        typed = f"{stars}{parameter.name}: {_INTERNAL.sub('', kind)}"
        has_default = parameter.default is not parameter.empty
        shown.append(f"{typed} = {_default(parameter.default)}" if has_default else typed)
    called = f"{name.rpartition('.')[2]}({', '.join(shown)})"
    if len(called) <= 100:
        return called
    return f"{name.rpartition('.')[2]}(\n" + "".join(f"    {one},\n" for one in shown) + ")"


def _default(value: Any) -> str:
    text = repr(value)
    return "..." if text.startswith("<") else text


def _text(value: Any) -> Iterator[str]:
    """Yields a docstring in the style of Google as Markdown."""
    parts = _SECTION.split(inspect.getdoc(value) or "")
    yield parts[0].strip()
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        yield from ("", f"*{title}*", "")
        content = textwrap.dedent(body.strip("\n"))
        if title == "Returns":
            yield content
            continue
        entries = _ENTRY.split(textwrap.indent(content, "  "))
        for key, text in zip(entries[1::2], entries[2::2], strict=True):
            line = f"- `{key}`: {' '.join(text.split())}"
            yield textwrap.fill(line, 118, subsequent_indent="  ", break_long_words=False)


if __name__ == "__main__":
    print(page(), end="")
