from __future__ import annotations

import pytest
import tensorflow.compat.v1 as tf

from runner.config.instantiation import References
from runner.errors import ConfigError
from runner.graph.names import RUN_NAMES, build_hook, first_hooks

NAN = "tensorflow.compat.v1.train.NanTensorHook"
TENSOR = object()
GRAPH = References({"graph": {"loss": TENSOR}})


def test_a_hook_over_the_graph_is_built_at_once_and_one_over_the_run_later() -> None:
    hooks = first_hooks(
        {
            "early": {"_target_": NAN, "loss_tensor": "${graph:loss}"},
            "late": {"_target_": NAN, "loss_tensor": "${run:saver}"},
        },
        GRAPH,
    )
    assert list(hooks) == ["early", "late"]
    assert isinstance(hooks["early"], tf.train.NanTensorHook)
    assert hooks["late"] is None


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"_target_": NAN, "loss_tensor": "${graph:los}"}, r"hooks\.mine\.loss_tensor is"),
        ({"_target_": NAN, "loss_tensor": "${run:savr}"}, r"is \$\{run:savr\}(.|\n)*saver"),
        ({"_target_": NAN, "los": "${run:saver}"}, r"hooks\.mine\.los is not an argument"),
        ({"_target_": "builtins.dict"}, r"builtins\.dict is not a tf\.compat\.v1\.train\.Sess"),
    ],
)
def test_a_mistake_is_found_before_there_is_a_run(node: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        first_hooks({"mine": node}, GRAPH)


def test_what_is_no_hook_is_refused_later_too() -> None:
    known = GRAPH.also("run", dict.fromkeys(RUN_NAMES, 1))
    with pytest.raises(ConfigError, match="is not a tf"):
        build_hook("mine", {"_target_": "builtins.dict", "x": "${run:saver}"}, known)
