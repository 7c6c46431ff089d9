"""The part of the schema that says where runs are recorded, and what is secret."""

from __future__ import annotations

from dataclasses import dataclass, field

from runner.config import choices


@dataclass
class MaskConfig:
    """What counts as a secret, which is recorded as `***` in parameters, tags and artifacts."""

    # Globs that match whole dotted keys of the configuration, ignoring case.
    names: list[str] = field(
        default_factory=lambda: [
            "*password*",
            "*passwd*",
            "*secret*",
            "*token",
            "*api_key*",
            "*apikey*",
            "*access_key*",
            "*private_key*",
            "*credential*",
        ]
    )
    # Regular expressions that match parts of strings; masks the first group, or else the whole
    # match.
    values: list[str] = field(
        default_factory=lambda: [
            r"://[^\s/@:]*:([^\s/@]+)@",
            r"(?i)(?:password|passwd|secret|token|api_?key|access_key|credential)=([^\s,;&'\"]+)",
            r"\bAKIA[0-9A-Z]{16}\b",
            r"\b(?:gh[pousr]|github_pat|glpat|hf)[_-]\w{16,}",
            r"\bsk-[\w-]{16,}",
        ],
        metadata=choices.PATTERNS,
    )


@dataclass
class TrackingConfig:
    """Where runs are recorded."""

    # An MLflow tracking URI; null records nothing in MLflow.
    uri: str | None = "sqlite:///mlflow.db"
    # True also writes TensorBoard event files, to `tensorboard` in the run directory.
    tensorboard: bool = False
    # True also records system metrics in MLflow, as `system/...`.
    system_metrics: bool = False
    # How long a run waits at its end until everything is delivered, in seconds. A sweep waits this
    # long without progress.
    close_seconds: float = 30.0
    # How long delivery is retried without success after a run has ended, in seconds. The rest is
    # delivered by `python -m runner.sync` or when the run resumes.
    patience_seconds: float = 60.0
    mask: MaskConfig = field(default_factory=MaskConfig)
