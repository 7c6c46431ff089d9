from __future__ import annotations

from typing import Any

import pytest
from omegaconf import OmegaConf

from runner.config.instantiation import References, build_target, has_reference, register_resolvers
from runner.errors import ConfigError

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
    assert caught.value.problems[0].remedy == "let the reference be the whole value"


def test_without_anything_to_refer_to_a_reference_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"data\.x is \$\{graph:loss\}"):
        build_target("data", {"_target_": TARGET, "x": "${graph:loss}"})


def test_names_of_the_graph_are_looked_for_further() -> None:
    references = References({"graph": {}}, {"dense/BiasAdd:0": LOSS}.get)
    assert references.problems("hooks", ["${graph:dense/BiasAdd:0}"]) == []
    assert references.resolve("${graph:dense/BiasAdd:0}") is LOSS
