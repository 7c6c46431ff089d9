"""The part of the schema that says where runs are recorded, and what is secret."""

from __future__ import annotations

from dataclasses import dataclass, field

from runner.config import choices


@dataclass
class MaskConfig:
    """What is secret, and recorded as `***` in parameters, tags and artifacts alike."""

    # Globs over whole dotted names of the configuration, in any case.
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
    # Regular expressions over strings; the first group is masked, or the whole match.
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
    # True also writes event files for TensorBoard, to `tensorboard` in the run directory.
    tensorboard: bool = False
    # True also records the load of the machine in MLflow, as metrics `system/...`.
    system_metrics: bool = False
    # How long the end of a run waits until everything is delivered, in seconds. The end of a sweep
    # waits so long without progress.
    close_seconds: float = 30.0
    # How long delivery is retried without success once the run has ended, in seconds. What is left
    # is delivered by `python -m runner.sync`, or when the run is resumed.
    patience_seconds: float = 60.0
    mask: MaskConfig = field(default_factory=MaskConfig)
