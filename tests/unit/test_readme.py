"""The README is short, and its configuration and its program are right."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from omegaconf import OmegaConf

from runner.config.schema import RunConfig
from runner.config.validation import validate

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()


def test_it_is_read_in_five_minutes() -> None:
    assert README.count("\n") <= 150


def test_the_config_is_valid() -> None:
    found = re.search(r"```yaml\n(# @package _global_\n.*?)```", README, re.DOTALL)
    assert found is not None
    optimizer = {"optimizer": {"_target_": "tensorflow.compat.v1.train.AdamOptimizer"}}
    config = OmegaConf.merge(OmegaConf.structured(RunConfig), optimizer, yaml.safe_load(found[1]))
    scaffolds = validate(config).scaffolds  # type: ignore[arg-type]
    assert scaffolds["cnn"].checkpoint == "experiment:digits_cnn"
    assert scaffolds["lstm"].convert == {"lstm/*": "torch_lstm"}
