"""The structured config of where runs are recorded."""

from __future__ import annotations

from dataclasses import dataclass, field


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
    # Regular expressions over texts; the first group is masked, or all where there is none.
    values: list[str] = field(
        default_factory=lambda: [
            r"://[^\s/@:]*:([^\s/@]+)@",
            r"(?i)(?:password|passwd|secret|token|api_?key|access_key|credential)=([^\s,;&'\"]+)",
            r"\bAKIA[0-9A-Z]{16}\b",
            r"\b(?:gh[pousr]|github_pat|glpat|hf)[_-]\w{16,}",
            r"\bsk-[\w-]{16,}",
        ]
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
    # How long the end of a run waits until everything is delivered, in seconds; that of a sweep,
    # how long since it last got on.
    close_seconds: float = 30.0
    # How long delivery goes on without success once the run has ended, in seconds. What is left
    # is delivered by `python -m runner.sync`, or when the run is resumed.
    patience_seconds: float = 60.0
    mask: MaskConfig = field(default_factory=MaskConfig)
