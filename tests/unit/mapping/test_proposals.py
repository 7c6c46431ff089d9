"""The rules that the map writes start models, with the outputs of their sources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import safetensors.numpy
import yaml

import runner
from runner.errors import ConfigError
from runner.mapping.generalisation import generalise
from tests.architectures.test_architectures import CASES, KEPT, difference, model_of

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
SMALL = [
    "hugging_face-bert-by_hand",
    "hugging_face-gpt2-by_hand",
    "hugging_face-llama-by_hand",
    "hugging_face-roberta-by_hand",
    "lora-dense",
    "odd-layers",
    "pytorch-bidirectional_gru",
    "pytorch-bidirectional_lstm",
    "pytorch-transformer_encoder",
    "torchvision-resnet50",
    "vgg-small",
]


LONG = ("hugging_face-llama-by_hand", "hugging_face-roberta-by_hand", "lora-dense")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.soak) if name in LONG else name for name in SMALL]
)
@pytest.mark.parametrize("proven", [False, True])
def test_the_rules_unchanged_reach_the_outputs_of_the_source(
    name: str, proven: bool, tmp_path: Path
) -> None:
    case = CASES[name]
    model = model_of(case, small=True)
    source = KEPT / f"{case['source']}.pt"
    reference = source.with_suffix(".npz") if proven else None
    before = [variable.numpy() for variable in model.variables]
    proposal = runner.propose(model, source, reference=reference)
    assert proposal.is_certain == proven
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    (scaffold,) = proposal.scaffolds.values()
    assert len(scaffold["rules"]) <= 30
    (tmp_path / "scaffolds.yaml").write_text(str(proposal))
    runner.warm_start(model, tmp_path / "scaffolds.yaml")
    assert difference(model, source.with_suffix(".npz")) < 1e-5


def saved(file: Path, **shapes: tuple[int, ...]) -> str:
    """A file of tensors, each filled with its number; `__` stands for a dot in their names."""
    values = {
        name.replace("__", "."): np.full(shape, at, np.float32)
        for at, (name, shape) in enumerate(shapes.items())
    }
    safetensors.numpy.save_file(values, file)
    return str(file)


def twins(tmp_path: Path) -> tuple[keras.Model, str]:
    """A model with two layers of one shape, and a file that names them in words of its own."""
    layers = [keras.layers.Dense(4, name=name, use_bias=False) for name in ("query", "key")]
    model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(2, name="head")])
    tensors = {"x__weight": (4, 4), "y__weight": (4, 4), "out__weight": (2, 4), "out__bias": (2,)}
    return model, saved(tmp_path / "twins.safetensors", **tensors)


def test_what_nothing_decides_is_listed_and_is_no_rule_until_a_hint(tmp_path: Path) -> None:
    model, file = twins(tmp_path)
    proposal = runner.propose(model, file)
    assert not proposal.is_certain
    assert proposal.plan.problems
    assert "query/kernel" in str(proposal)
    assert "x.weight or y.weight" in str(proposal)
    assert not any("query" in rule for rule in proposal.scaffolds["twins"]["rules"])
    decided = runner.propose(model, file, hints={"y": "query", "x": "key"})
    assert decided.plan.problems == ()
    assert not decided.is_certain
    assert yaml.safe_load(str(decided))["scaffolds"] == decided.scaffolds
    runner.warm_start(model, decided.scaffolds)
    assert model.get_layer("query").kernel.numpy()[0, 0] == 1


USELESS_HINTS = {
    ("z", "query"): ("no tensor has the word z in its name", "bias"),
    ("outt", "head"): ("no tensor has the word outt in its name", "out"),
    ("x", "querry"): ("no variable has the word querry in its name", "query"),
}


@pytest.mark.parametrize("hint", USELESS_HINTS)
def test_a_hint_that_changes_nothing_is_a_mistake(hint: tuple[str, str], tmp_path: Path) -> None:
    model, file = twins(tmp_path)
    with pytest.raises(ConfigError) as caught:
        runner.propose(model, file, hints={"y": "query", hint[0]: hint[1]})
    (problem,) = caught.value.problems
    cause, choice = USELESS_HINTS[hint]
    assert problem.state == f"the hint {hint[0]}={hint[1]} changes nothing"
    assert problem.cause == cause
    assert choice in problem.choices


def test_a_hint_may_be_for_one_of_several_files(tmp_path: Path) -> None:
    model, file = twins(tmp_path)
    head = saved(tmp_path / "head.safetensors", head__weight=(2, 4), head__bias=(2,))
    hints = {"y": "query", "x": "key"}
    plan = runner.warm_start(model, runner.propose(model, [head, file], hints=hints).scaffolds)
    assert {assignment.scaffold for assignment in plan.assignments} == {"head", "twins"}


def test_a_part_without_tensors_is_excluded_and_named(tmp_path: Path) -> None:
    model, _ = twins(tmp_path)
    file = saved(tmp_path / "head.safetensors", head__weight=(2, 4), head__bias=(2,))
    proposal = runner.propose(model, file)
    assert proposal.plan.problems == ()
    assert proposal.scaffolds["head"]["variables"]["exclude"] == ["key/*", "query/*"]
    assert "No tensor fits: query/kernel, key/kernel" in str(proposal)


def test_several_checkpoints_give_what_those_before_lack(tmp_path: Path) -> None:
    model, _ = twins(tmp_path)
    head = saved(tmp_path / "head.safetensors", head__weight=(2, 4), head__bias=(2,))
    rest = saved(tmp_path / "rest.safetensors", query__weight=(4, 4), key__weight=(4, 4))
    proposal = runner.propose(model, [head, rest])
    plan = runner.warm_start(model, proposal.scaffolds)
    assert {assignment.scaffold for assignment in plan.assignments} == {"head", "rest"}


@pytest.mark.parametrize("proven", [False, True])
@pytest.mark.parametrize(
    ("module", "rules"),
    [
        ("conv 1", {"d/": "'conv 1.'"}),
        ("fc(a)", {"d/": "'fc(a).'"}),
        ("a|b", {"d/": "'a|b.'"}),
        ("a | b", {"d/kernel": "'a | b.weight' | linear", "d/bias": "'a | b.bias'"}),
        ("x=1", {"d/": "'x=1.'"}),
        ("a[0]", {"d/": "'a[0].'"}),
        ("it's", {"d/": '"it\'s."'}),
        ("{", {"d/": "'{.'"}),
        ("two\nlines", {"d/": "'two\nlines.'"}),
        ("\\n", {"d/": "\\n."}),
        ("{n}", None),
        ("{gate}", None),
        ("\\1", None),
        ("q'\"", None),
    ],
)
def test_names_are_quoted_where_a_rule_needs_it_and_others_are_named(
    module: str, rules: dict[str, str] | None, proven: bool, tmp_path: Path
) -> None:
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, name="d")])
    generator = np.random.default_rng(0)
    kernel = generator.normal(size=(4, 6)).astype(np.float32)
    points = generator.normal(size=(3, 6)).astype(np.float32)
    tensors: dict[str, Any] = {f"{module}.weight": kernel, f"{module}.bias": np.ones(4, np.float32)}
    safetensors.numpy.save_file(tensors, tmp_path / "source.safetensors")
    np.savez(tmp_path / "reference.npz", inputs=points, outputs=points @ kernel.T + 1)
    reference = tmp_path / "reference.npz" if proven else None
    proposal = runner.propose(model, tmp_path / "source.safetensors", reference=reference)
    assert proposal.is_certain == (rules is not None)
    assert proposal.scaffolds["source"].get("rules") == rules
    if rules is None:
        states = [problem.state for problem in proposal.doubts()]
        assert f"{module}.bias, {module}.weight may hold weights" in states
        assert not yaml.safe_load(str(proposal))
        return
    runner.warm_start(model, yaml.safe_load(str(proposal))["scaffolds"])
    np.testing.assert_array_equal(model.get_layer("d").kernel, kernel.T)


def test_a_name_of_two_lines_stays_in_its_comment(tmp_path: Path) -> None:
    model, _ = twins(tmp_path)
    names = ("head.weight", "a\nscaffolds: {}\x1b[2J", "{n}\nb: 1")
    tensors = {name: np.ones((2, 4), np.float32) for name in names}
    safetensors.numpy.save_file(tensors, tmp_path / "source.safetensors")
    proposal = runner.propose(model, tmp_path / "source.safetensors")
    assert r"a\nscaffolds: {}\x1b[2J" in str(proposal)
    assert all(line.lstrip()[:1] == "#" for line in str(proposal).splitlines())


def test_a_rule_that_says_too_much_leaves_names_to_another() -> None:
    """The rule of `a_0/` would match `a_0_bn1/` too, which a rule of all levels is right for."""
    heads = {f"a_{n}/": f"x.{n}.0." for n in range(3)}
    norms = {f"a_{n}_bn{level}/": f"y.{n}.{level}." for n in range(3) for level in range(2)}
    rules = generalise(heads | norms, heads | norms, [])
    assert rules == heads | {"a_{a}_bn{b}/": "y.{a}.{b}."}


def test_numbered_modules_whose_names_need_quotes_share_a_rule(tmp_path: Path) -> None:
    layers = [keras.layers.Dense(4, name=f"layer_{at}") for at in range(3)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    tensors: dict[str, Any] = {}
    for at in range(3):
        tensors[f"my net.layer {at + 1}.weight"] = np.full((4, 4), at, np.float32)
        tensors[f"my net.layer {at + 1}.bias"] = np.zeros(4, np.float32)
    safetensors.numpy.save_file(tensors, tmp_path / "source.safetensors")
    proposal = runner.propose(model, tmp_path / "source.safetensors")
    assert proposal.scaffolds["source"]["rules"] == {"layer_{l}/": "'my net.layer {l+1}.'"}
    runner.warm_start(model, proposal.scaffolds)
    assert [layer.kernel.numpy()[0, 0] for layer in model.layers] == [0, 1, 2]


@pytest.mark.parametrize("form", ["keras", "weights.h5", "npz"])
def test_a_square_kernel_lies_as_the_format_has_it(form: str, tmp_path: Path) -> None:
    def build(*names: str) -> keras.Model:
        steps = [layer for name in names for layer in [keras.layers.Dense(4, name=name)]]
        return keras.Sequential([keras.Input((4,)), *steps])

    source, model = build("one"), build("one")
    file = tmp_path / f"source.{form}"
    if form == "npz":
        np.savez(file, **{"one/kernel": source.weights[0], "one/bias": source.weights[1]})
    elif form == "keras":
        source.save(file)
    else:
        source.save_weights(file)
    runner.warm_start(model, runner.propose(model, file).scaffolds)
    np.testing.assert_array_equal(model.weights[0].numpy(), source.weights[0].numpy())
