"""The README's example and config work."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import yaml
from omegaconf import OmegaConf

import runner
from runner.config.schema import RunConfig
from runner.config.validation import validate

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()


def _block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_example_is_the_one_of_the_docstring_which_is_run_elsewhere() -> None:
    documented = inspect.getdoc(runner) or ""
    assert documented.strip().endswith(_block("python").strip())


def test_the_config_is_valid() -> None:
    text = _block("yaml")
    assert text.startswith("# @package _global_")
    given = yaml.safe_load(text)
    del given["defaults"]
    chosen = {
        "data": {"_target_": "runner.examples.digits.DigitSequences"},
        "model": {"_target_": "runner.examples.models.SequenceClassifier"},
        "optimizer": {"_target_": "tensorflow.compat.v1.train.AdamOptimizer"},
    }
    config = OmegaConf.merge(OmegaConf.structured(RunConfig), chosen, given)
    scaffolds = validate(config).scaffolds  # type: ignore[arg-type]
    assert scaffolds["cnn"].checkpoint == "experiment:digits_cnn"
    assert scaffolds["lstm"].rename == {"lstm/": "encoder/rnn/"}
