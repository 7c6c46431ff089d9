"""How a configuration names checkpoints that are no paths."""

from __future__ import annotations

MLFLOW_SCHEMES = ("runs:/", "models:/", "mlflow-artifacts:")
