"""OmegaConf reads YAML by a loader that is replaced: where these fail, look there first."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf, _utils

from runner.internals.omegaconf import MAX_DEPTH, bound_yaml, bounded_loader

TEN = ",".join(["{0}"] * 10)
LAUGHS = "\n".join(
    [f"a0: &a0 [{TEN.format('x')}]"]
    + [f"a{i}: &a{i} [{TEN.format(f'*a{i - 1}')}]" for i in range(1, 7)]
)
CHAIN = "\n".join(["a0: &a0 [x]"] + [f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 60)])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (LAUGHS, "stands for more than 100,000 values"),
        (CHAIN, "nested more than 50 levels"),
        ("a: " + "[" * 300 + "]" * 300, "nested more than 50 levels"),
        ("a: " + "{b: " * 300 + "1" + "}" * 300, "nested more than 50 levels"),
        ("a: &a {b: *a}", "the value of &a contains itself"),
        ("a: &a [[*a]]", "the value of &a contains itself"),
    ],
)
def test_yaml_without_bounds_is_refused(
    content: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_utils, "get_yaml_loader", _utils.get_yaml_loader)  # Restored afterwards.
    bound_yaml()
    (tmp_path / "x.yaml").write_text(content)
    with pytest.raises(yaml.YAMLError, match=message):
        OmegaConf.load(tmp_path / "x.yaml")


def test_other_yaml_is_read_as_by_omegaconf() -> None:
    content = "a: &a {b: [1, 1e-3, 2001-01-01, *s], c: &c yes}\nd: *a\ne: {<<: *a, f: *c}\n"
    content = content.replace("*s", "&s x") + f"g: {'[' * (MAX_DEPTH - 1)}{']' * (MAX_DEPTH - 1)}"
    unbounded = yaml.load(content, _utils.get_yaml_loader())
    assert yaml.load(content, bounded_loader()) == unbounded
    with pytest.raises(yaml.YAMLError, match="duplicate key"):
        yaml.load("a: 1\na: 2", bounded_loader())
