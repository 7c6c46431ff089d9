"""`tf.estimator.WarmStartSettings`: which variables an Estimator takes from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

VocabInfo = tf.compat.v1.train.VocabInfo


class _Settings(NamedTuple):
    ckpt_to_initialize_from: str
    vars_to_warm_start: Any = ".*"
    var_name_to_vocab_info: Mapping[str, Any] = {}
    var_name_to_prev_var_name: Mapping[str, str] = {}


class WarmStartSettings(_Settings):
    """`tf.estimator.WarmStartSettings`: what `tf.compat.v1.train.warm_start` is called with.

    In a configuration the same is said by a scaffold: `checkpoint`, `variables.include`,
    `vocabulary` and `rename`.

    Attributes:
      ckpt_to_initialize_from: a checkpoint or a directory of checkpoints.
      vars_to_warm_start: a regular expression over trainable variables, by default `.*`; a list of
        them over all variables; a list of variables; or None for those with a vocabulary only.
      var_name_to_vocab_info: variable -> `VocabInfo`, empty by default.
      var_name_to_prev_var_name: variable -> its name in the checkpoint, empty by default.

    Raises:
      ValueError: when there is no checkpoint.
    """

    __slots__ = ()

    def __new__(
        cls,
        ckpt_to_initialize_from: str,
        vars_to_warm_start: Any = ".*",
        var_name_to_vocab_info: Mapping[str, Any] | None = None,
        var_name_to_prev_var_name: Mapping[str, str] | None = None,
    ) -> WarmStartSettings:
        """Checks that there is a checkpoint."""
        if not ckpt_to_initialize_from:
            raise ValueError("`ckpt_to_initialize_from` MUST be set in WarmStartSettings")
        return super().__new__(
            cls,
            ckpt_to_initialize_from,
            vars_to_warm_start,
            var_name_to_vocab_info or {},
            var_name_to_prev_var_name or {},
        )


def warm_start_settings(warm_start_from: Any) -> WarmStartSettings | None:
    """Returns the settings that an Estimator's `warm_start_from` stands for.

    Args:
      warm_start_from: settings; the path of a checkpoint or a SavedModel; or None.

    Raises:
      ValueError: when it is something else.
    """
    if warm_start_from is None or isinstance(warm_start_from, WarmStartSettings):
        return warm_start_from
    if not isinstance(warm_start_from, str | bytes):
        raise ValueError(
            "warm_start_from must be a string or a WarmStartSettings, instead got "
            f"{type(warm_start_from)}"
        )
    path = tf.compat.as_str(warm_start_from)
    variables = Path(path, "variables", "variables")
    saved_model = variables.with_suffix(".index").exists()
    return WarmStartSettings(str(variables) if saved_model else path)
