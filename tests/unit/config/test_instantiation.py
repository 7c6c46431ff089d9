"""`_target_` entries are built with the objects they refer to, or what does not fit is reported."""

from __future__ import annotations

import copy
import datetime
import fractions
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from runner.config.instantiation import (
    References,
    build_target,
    has_reference,
    register_resolvers,
)
from runner.errors import ConfigError, Problem, UserCodeError

ROOT = Path(__file__).resolve().parents[3]
MODULE = """
class Layer:
    def __init__(self, units, activation="relu", *, bias=True):
        self.units, self.activation, self.bias = units, activation, bias

class Net:
    def __init__(self, first, rest=()):
        self.first, self.rest = first, rest

def anything(**options):
    return options

def refuse(size):
    raise ValueError(f"{size} is too large")

def fail():
    raise RuntimeError("out of memory")
"""


@pytest.fixture(autouse=True)
def _modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mine_to_target.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "undefined_name.py").write_text("x = 1\ny = nosuch\n", encoding="utf-8")
    (tmp_path / "bad_syntax.py").write_text("def f(:\n", encoding="utf-8")
    (tmp_path / "lacks_module.py").write_text("import nosuch_module\n", encoding="utf-8")
    for name in ("mine_to_target", "undefined_name", "bad_syntax", "lacks_module"):
        monkeypatch.delitem(sys.modules, name, raising=False)


BUILT: list[tuple[dict[str, Any], Any]] = [
    ({"_target_": "datetime.timedelta", "hours": 2}, datetime.timedelta(hours=2)),
    ({"_target_": "fractions.Fraction", "_args_": [1, 3]}, fractions.Fraction(1, 3)),
    ({"_target_": "mine_to_target.anything", "a": [1]}, {"a": [1]}),
    # It has no signature.
    ({"_target_": "builtins.dict", "a": 1}, {"a": 1}),
]


@pytest.mark.parametrize(("node", "expected"), BUILT)
def test_a_target_is_called_with_its_arguments(node: dict[str, Any], expected: Any) -> None:
    before = copy.deepcopy(node)
    assert build_target("x", node) == expected
    assert node == before


def problems(node: dict[str, Any]) -> list[Problem]:
    with pytest.raises(ConfigError) as error:
        build_target("model", node)
    return list(error.value.problems)


def problem(node: dict[str, Any]) -> Problem:
    (found,) = problems(node)
    return found


def test_nested_targets_are_built_and_containers_are_plain() -> None:
    layer = {"_target_": "mine_to_target.Layer", "units": 4}
    net = build_target(
        "model",
        {"_target_": "mine_to_target.Net", "first": layer, "rest": [layer, {"sizes": [1, 2]}]},
    )
    assert net.first.units == net.rest[0].units == 4
    assert type(net.rest) is list
    assert type(net.rest[1]) is dict
    assert type(net.rest[1]["sizes"]) is list


@pytest.mark.parametrize(
    ("path", "cause", "choices"),
    [
        ("nosuch.Net", "No module named 'nosuch'", ()),
        ("", "Empty path", ()),
        ("..Net", "Error loading '..Net': invalid dotstring.", ()),
        ("mine_to_target.Nett", "No module named 'mine_to_target.Nett'", ("mine_to_target.Net",)),
        (
            "collections.OrderedDict.fromkey",
            "type object 'collections.OrderedDict' has no attribute 'fromkey'",
            ("collections.OrderedDict.fromkeys",),
        ),
        ("lacks_module.Net", "No module named 'nosuch_module'", ()),
        ("bad_syntax.Net", "invalid syntax (bad_syntax.py, line 1)", ()),
        ("undefined_name.Net", "NameError: name 'nosuch' is not defined (", ()),
        ("undefined_name.Net", "undefined_name.py, line 2)", ()),
        ("copy", "that is a module, which cannot be called", ()),
    ],
)
def test_what_cannot_be_imported(path: str, cause: str, choices: tuple[str, ...]) -> None:
    found = problem({"_target_": path})
    assert found.state == f"model._target_ is {path!r}"
    assert cause in found.cause
    assert found.choices == choices
    assert "Python path" in found.remedy


def test_an_unknown_argument_names_the_arguments() -> None:
    found = problem({"_target_": "mine_to_target.Layer", "units": 3, "activatoin": "tanh"})
    assert found.state == "model.activatoin is not an argument of mine_to_target.Layer"
    assert found.choices == ("activation", "units", "bias")
    partial = problem({"_target_": "mine_to_target.Layer", "_partial_": True, "unit": 1})
    assert partial.choices[0] == "units"


def test_every_wrong_argument_is_reported() -> None:
    found = problems({"_target_": "mine_to_target.Layer", "a": 1, "b": 2})
    assert found[2].cause == "mine_to_target.Layer needs it"
    assert [each.state for each in found] == [
        "model.a is not an argument of mine_to_target.Layer",
        "model.b is not an argument of mine_to_target.Layer",
        "model.units has no value",
    ]


@pytest.mark.parametrize(
    ("nested", "state"),
    [
        ({"_target_": "mine_to_target.Leyer"}, "model.first._target_ is 'mine_to_target.Leyer'"),
        ({"_target_": "mine_to_target.Layer"}, "model.first.units has no value"),
        ([{"_target_": "mine_to_target.Layer"}], "model.first.0.units has no value"),
    ],
)
def test_nested_targets_are_checked_where_they_stand(nested: Any, state: str) -> None:
    assert problem({"_target_": "mine_to_target.Net", "first": nested}).state == state


def test_nested_targets_are_left_alone_where_the_target_builds_them() -> None:
    nested = {"_target_": "mine_to_target.Nosuch"}
    node = {"_target_": "mine_to_target.Net", "_recursive_": False, "first": nested}
    assert build_target("model", node).first == nested


def test_arguments_that_the_target_refuses(tmp_path: Path) -> None:
    found = problem({"_target_": "mine_to_target.refuse", "size": 9})
    assert found.state == "model: mine_to_target.refuse refuses its arguments"
    assert found.cause == (
        f"ValueError: 9 is too large ({tmp_path / 'mine_to_target.py'}, line 14)"
    )


def test_any_other_error_of_the_target_is_its_own() -> None:
    with pytest.raises(UserCodeError, match="model raised RuntimeError: out of memory") as error:
        build_target("model", {"_target_": "mine_to_target.fail"})
    assert isinstance(error.value.__cause__, RuntimeError)


@pytest.mark.parametrize("key", ["loss", "metrics.mine", "weighted_metrics.mine"])
def test_a_loss_or_a_metric_that_is_called_at_once(key: str) -> None:
    with pytest.raises(ConfigError) as error:
        build_target(key, {"_target_": "mine_to_target.refuse"})
    (found,) = error.value.problems
    assert found.state == f"{key} calls mine_to_target.refuse without size"
    assert found.remedy.endswith(f": +{key}._partial_=true")


PRINT = """
from runner.config.instantiation import build_target
from runner.errors import ConfigError
try:
    build_target("model", {"_target_": "nosuch.Net"})
except ConfigError as error:
    print(error.problems[0].cause)
"""


def test_hydra_prints_nothing_besides() -> None:
    # In a process of its own, because pytest handles the log records of this one.
    done = subprocess.run(
        [sys.executable, "-c", PRINT],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("No module named 'nosuch'\n", "")


register_resolvers()
LOSS = object()  # Stands for a tensor, which survives neither copying nor comparing.


def collect(*args: Any, **kwargs: Any) -> Any:
    """Returns what it is given."""
    return args, kwargs


REFERENCES = References({"graph": {"loss": LOSS, "learning_rate": 1}, "run": {"saver": 2}})
TARGET = f"{__name__}.collect"


@pytest.mark.parametrize(
    "text", ["${graph:loss}", "${graph:body/dense/kernel}", "${graph:x/y:0}", "${run:saver}"]
)
def test_a_resolved_configuration_spells_its_references_as_before(text: str) -> None:
    config = OmegaConf.create({"hooks": {"mine": {"tensors": [text]}}})
    plain = OmegaConf.to_container(config, resolve=True)
    assert plain == {"hooks": {"mine": {"tensors": [text]}}}
    assert OmegaConf.to_container(OmegaConf.create(plain), resolve=True) == plain
    assert text in OmegaConf.to_yaml(config, resolve=True)


def test_references_are_found_wherever_they_stand() -> None:
    assert has_reference({"a": [{"b": "${graph:loss}"}]})
    assert not has_reference({"a": ["graph:loss", "${oc.env:HOME}", 3, None]})
    assert REFERENCES.resolve({"a": ["${graph:loss}", "loss"], "b": ("${run:saver}",)}) == {
        "a": [LOSS, "loss"],
        "b": (2,),
    }


def test_a_target_is_called_with_the_object_itself() -> None:
    node = {
        "_target_": TARGET,
        "tensors": {"loss": "${graph:loss}"},
        "inner": {"_target_": TARGET, "saver": "${run:saver}", "plain": [1]},
    }
    _, kwargs = build_target("hooks.mine", node, REFERENCES)
    assert kwargs["tensors"]["loss"] is LOSS
    assert kwargs["inner"] == ((), {"saver": 2, "plain": [1]})


def test_a_partial_and_positional_arguments_are_resolved_too() -> None:
    node = {"_target_": TARGET, "_partial_": True, "_args_": ["${graph:loss}"]}
    (argument,), kwargs = build_target("hooks.mine", node, REFERENCES)(step=3)
    assert argument is LOSS
    assert kwargs == {"step": 3}


def test_names_to_nothing_are_errors_all_at_once_with_the_nearest() -> None:
    node = {"_target_": TARGET, "tensors": ["${graph:los}"], "saver": "${run:savr}"}
    with pytest.raises(ConfigError) as caught:
        build_target("hooks.mine", node, REFERENCES)
    first, second = caught.value.problems
    assert first.state == "hooks.mine.tensors.0 is ${graph:los}"
    assert first.cause == "there is no such name in the graph"
    assert first.choices == ("loss",)
    assert (second.state, second.choices) == ("hooks.mine.saver is ${run:savr}", ("saver",))


def test_a_reference_within_a_text_is_an_error() -> None:
    node = {"_target_": TARGET, "tensors": ["loss of ${graph:loss}"]}
    with pytest.raises(ConfigError, match=r"tensors\.0 is loss of \$\{graph:loss\}\n") as caught:
        build_target("hooks.mine", node, REFERENCES)
    assert caught.value.problems[0].remedy == "make the reference the whole value"


def test_names_of_the_graph_are_looked_for_further() -> None:
    references = References({"graph": {}}, {"dense/BiasAdd:0": LOSS}.get)
    assert references.problems("hooks", ["${graph:dense/BiasAdd:0}"]) == []
    assert references.resolve("${graph:dense/BiasAdd:0}") is LOSS
