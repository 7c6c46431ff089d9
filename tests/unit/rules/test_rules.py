"""Rules: which tensors a variable's expression takes, and by which steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from runner.rules.expressions import parse
from runner.rules.patterns import compile_pattern, substitute
from runner.rules.translator import Rules
from tests.support.plans import Shape, checkpoint, one, only, scaffold, source_of, variable

BERT = {
    "transformer_layer_{n}/": "bert.encoder.layer.{n}.",
    "{block/}self_attention_layer/query/": "{block/}attention.self.query. | einsum_dense",
    "{block/}norm{_k}/": "{block/}LayerNorm{k}. | norm",
}


@pytest.mark.parametrize(
    ("key", "value", "name", "expected"),
    [
        ("conv{s}_block{b}/", "layer{s-1}.{b}.", "conv3_block2/kernel", "layer2.2."),
        ("block_{n}_expand/", "features.{n+1}.", "block_12_expand/kernel", "features.13."),
        ("block_{n}_expand/", "features.{n+1}.", "block_x_expand/kernel", None),
        ("block_{n}_expand/", "features.{n}.", "block_x_expand/kernel", "features.x."),
        ("s{s}{l}_x/", "{s}.{ord(l)-97}.", "s3b_x/kernel", "3.1."),
        ("dense{_n}/", "fc{_n+1}.", "dense/kernel", "fc1."),
        ("dense{_n}/", "fc{_n}.", "dense_4/kernel", "fc4."),
        ("{a}/{a}/w", "{a}", "x/x/w", "x"),
        ("{a}/{a}/w", "{a}", "x/y/w", None),
        ("*/w?", "w", "x/y/w1", "w"),
        (r"re:(.*)/(?P<leaf>k)", r"\1.{leaf}", "a/b/k", "a/b.k"),
        ("b{n}/", "{2*(n-1)+5}.{n//2}.{n%2}.", "b3/w", "9.1.1."),
    ],
)
def test_parts_of_names_and_arithmetic(key: str, value: str, name: str, expected: str) -> None:
    parts = compile_pattern(key, value).match(name)
    assert (None if parts is None else substitute(value, parts)) == expected


W = "w.weight"


@pytest.mark.parametrize(
    ("expression", "shape", "tensors", "expected"),
    [
        ("t", (2, 3), {"t": (2, 3)}, lambda t: t),
        ("'a (b)'", (2, 3), {"a (b)": (2, 3)}, lambda t: t),
        ("t | transpose", (3, 2), {"t": (2, 3)}, lambda t: t.T),
        ("t | transpose(1, 2, 0)", (3, 4, 2), {"t": (2, 3, 4)}, lambda t: t.transpose(1, 2, 0)),
        ("t | flip(0, -1)", (2, 3, 4), {"t": (2, 3, 4)}, lambda t: t[::-1, :, ::-1]),
        ("t | flip", (2, 3), {"t": (2, 3)}, lambda t: t[::-1, ::-1]),
        ("t | reshape", (3, 2), {"t": (6,)}, lambda t: t.reshape(3, 2)),
        ("t | reshape(3, -1) | transpose", (2, 3), {"t": (6,)}, lambda t: t.reshape(3, 2).T),
        ("t | [2:]", (4, 3), {"t": (6, 3)}, lambda t: t[2:]),
        ("t | [:, -2:]", (6, 2), {"t": (6, 3)}, lambda t: t[:, -2:]),
        ("t | [0, ..., 1:2]", (2, 1), {"t": (3, 2, 3)}, lambda t: t[0, ..., 1:2]),
        ("t | split(3, 1, axis=-1)", (2, 2), {"t": (2, 6)}, lambda t: t[:, 2:4]),
        (
            "t | linear | unflatten(2, 3, 1)",
            (6, 4),
            {"t": (4, 6)},
            lambda t: t.reshape(4, 2, 3, 1).transpose(2, 3, 1, 0).reshape(6, 4),
        ),
        ("t | scale(0.5)", (2,), {"t": (2,)}, lambda t: t * np.float32(0.5)),
        ("t | mean(1)", (2, 1), {"t": (2, 3)}, lambda t: t.mean(1, keepdims=True)),
        ("t | sum(1)", (2, 1), {"t": (2, 3)}, lambda t: t.sum(1, keepdims=True)),
        ("t | repeat(5, 1)", (2, 5), {"t": (2, 3)}, lambda t: t[:, [0, 1, 2, 0, 1]]),
        ("t | pad(1, 2)", (6,), {"t": (3,)}, lambda t: np.pad(t, (1, 2))),
        ("sum(t, u)", (2,), {"t": (2,), "u": (2,)}, lambda t, u: t + u),
        ("sum(t, u | [0])", (3, 2), {"t": (3, 2), "u": (2, 2)}, lambda t, u: t + u[0]),
        (
            "concat(t | [1:], u, axis=0) | transpose",
            (2, 4),
            {"t": (3, 2), "u": (2, 2)},
            lambda t, u: np.concatenate([t[1:], u]).T,
        ),
        ("stack(t, u, axis=1)", (3, 2), {"t": (3,), "u": (3,)}, lambda t, u: np.stack([t, u], 1)),
        ("zeros()", (2, 3), {}, lambda: np.zeros((2, 3))),
        ("ones() | scale(2)", (2,), {}, lambda: 2 * np.ones(2)),
    ],
)
def test_an_expression_against_numpy(
    expression: str, shape: Shape, tensors: dict[str, Shape], expected: Any
) -> None:
    source = checkpoint(shapes=tensors)
    plan = one([variable("w", shape)], scaffold(rules={"w": expression}), source)
    assert not plan.problems, str(plan.problems[0])
    source_tensor = source_of(plan, "w")
    rng = np.random.default_rng(0)
    values = {name: rng.normal(size=size).astype(np.float32) for name, size in tensors.items()}
    result = source_tensor.convert([values[name] for name in source_tensor.names])
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, expected(*values.values()).astype(np.float32))


def test_renames_of_blocks_and_of_roles_compose() -> None:
    shapes: dict[str, Shape] = {
        "transformer_layer_3/self_attention_layer/query/kernel": (6, 2, 3),
        "transformer_layer_3/self_attention_layer/query/bias": (2, 3),
        "transformer_layer_3/norm/gamma": (6,),
        "transformer_layer_3/norm_1/beta": (6,),
    }
    tensors: dict[str, Shape] = {
        "bert.encoder.layer.3.attention.self.query.weight": (6, 6),
        "bert.encoder.layer.3.attention.self.query.bias": (6,),
        "bert.encoder.layer.3.LayerNorm0.weight": (6,),
        "bert.encoder.layer.3.LayerNorm1.bias": (6,),
    }
    variables = [variable(name, shape) for name, shape in shapes.items()]
    source = checkpoint(shapes=tensors)
    for rules in (BERT, dict(reversed(BERT.items()))):
        rules = {key: value.replace("{k}", "{_k}") for key, value in rules.items()}
        plan = one(variables, scaffold(rules=rules), source)
        assert not plan.problems, str(plan.problems[0])
        assert [a.source_tensor.names for a in plan.assignments if a.source_tensor] == [
            (name,) for name in tensors
        ]


def test_a_named_conversion_names_the_tensor_that_steps_divide() -> None:
    variables = [variable("a/query/kernel", (6, 2, 3)), variable("a/query/bias", (2, 3))]
    source = checkpoint(shapes={"attn.qkv.weight": (18, 6), "attn.qkv.bias": (18,)})
    rules = {"a/query/": "attn.qkv. | split(3, 0) | einsum_dense"}
    plan = one(variables, scaffold(rules=rules), source)
    assert not plan.problems, str(plan.problems[0])
    steps = [a.source_tensor.steps for a in plan.assignments if a.source_tensor]
    assert steps[0] == ("slice [0:6, 0:6]", "transposed (1, 0)", "reshaped to [6, 2, 3]")
    assert steps[1] == ("slice [0:6]", "reshaped to [2, 3]")


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"w": "t | transpos"}, "'transpos' is not a step; the nearest are transpose"),
        ({"w": "add(t, u)"}, "'add' is not a function, but sum, "),
        ({"w": "t | split(3)"}, "split: missing a required argument: 'part'"),
        ({"w": "t |"}, "'the end' where a name is expected"),
        ({"w": "t | linear(1)"}, "linear: too many positional arguments"),
        ({"w": "t u"}, "'u' is not expected there"),
        ({"w": "t | [2:"}, "is not a name, a step or a slice"),
        ({"{n}": "{m}"}, "{m} names no part of the pattern: m"),
        ({"{n}": "{n+}"}, "{n+} is not a part or a computation"),
        ({"{n}": "{n.x}"}, "is not a computation: it knows + - * // % and ord"),
        ({"{1n}": "t"}, "{1n} in the pattern is not the name of a part"),
        ({"re:(": "t"}, "not a regular expression"),
        ({"a/": "sum(a, b)"}, "a rule for a module, which ends in `/`, has no function"),
        ({"w": "t | split(5, 0)"}, "[2, 3] has no part 0 of 5 along axis 0"),
        ({"w": "t | split(0, 0)"}, "[2, 3] has no part 0 of 0 along axis 0"),
        ({"w": "concat()"}, "concat takes tensors"),
        ({"w": "zeros(t)"}, "zeros takes no tensors"),
        ({"w": "stack(t, t, axis=x)"}, "stack does not take x"),
        ({"w": "t | [7:]"}, "[7:] is not a block of [2, 3]"),
        ({"w": "t | unflatten(7, 7)"}, "[2, 3] has no single axis of 49 entries"),
        ({"w": "t | flip(2)"}, "axes [2] are not different axes of [2, 3]"),
        ({"w": "t | flip(0, -2)"}, "axes [0, -2] are not different axes of [2, 3]"),
        ({"w": "t | flip(a)"}, "axes ['a'] are not different axes of [2, 3]"),
        ({"w": "t | scale(a)"}, "scale does not take a"),
        ({"w": "t | transpose(a)"}, "axes ['a'] do not permute the axes of [2, 3]"),
        ({"v": "t", "w": "t"}, "matches no variable"),
    ],
)
def test_rules_that_are_not_valid(rules: dict[str, str], words: str) -> None:
    problem = only(one([variable("w")], scaffold(rules=rules), checkpoint("t")))
    assert "rules" in f"{problem.state} {problem.remedy}"
    assert words in problem.cause


def test_the_rule_that_matches_most_wins_and_of_several_the_first() -> None:
    rules = Rules(
        {"a/": "x.", "a/b/": "y.", "a/b/c/": "w.", "{n}/b/k": "z", "a/b/*": "v", "{m/}c/": "{m/}u."}
    )
    assert rules.find(["a/b/k"]) == parse("z")
    assert rules.find(["a/b/l"]) == parse("v")
    assert rules.find(["a/l"]) == parse("x.l")
    assert rules.find(["b", "a/e"]) == parse("x.e")
    assert rules.find(["a/c/k"]) == parse("x.u.k")
    assert rules.find(["b"]) is None
    assert rules.unused() == ("a/b/", "a/b/c/")
