"""The plan of a warm start as programs have it: printed, as a page, as provenance, and back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.checkpoints.open import open_pinned
from runner.console import PIPED, as_html
from runner.errors import PlanError
from runner.planning import html_report, json_report, report
from runner.planning.model_variables import eager_variables
from runner.planning.plan import RestorationPlan
from runner.restoration.inversion import invert
from runner.runs.provenance import Origin
from runner.runs.run_directory import PROVENANCE


@dataclass(frozen=True)
class WarmStartPlan(RestorationPlan):
    """Where the value of every variable of a model comes from; prints as a table.

    Attributes:
      origins: scaffold -> the checkpoints that its source was resolved to.
      model: the model's name.
    """

    origins: Mapping[str, tuple[Origin, ...]] = field(default_factory=dict)
    model: str = ""

    def __str__(self) -> str:
        # Of the terminal where there is one; otherwise as a plan that is piped.
        width = shutil.get_terminal_size((PIPED, 24)).columns
        return report.text(self, whole=False, width=width)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return as_html(report.table(self))

    def to_html(self) -> str:
        """Returns the plan as one self-contained page."""
        return html_report.html(self, f"{self.model}: plan")

    def to_json(self) -> str:
        """Returns the plan as a JSON object, with the keys of `json_report.json_text`."""
        return json_report.json_text(self)

    def provenance(self) -> dict[str, Any]:
        """Returns where every value comes from, and where the checkpoints themselves came from.

        It has the keys of `json_report.provenance_document`.
        """
        return json_report.provenance_document(
            self, self.origins, experiment=self.model, run_dir=Path.cwd()
        )

    def invert(self, values: Any, scaffold: str | None = None) -> dict[str, NDArray[Any]]:
        """Returns the tensors of a scaffold's checkpoint with the values of the variables in them.

        `safetensors.numpy.save_file(plan.invert(model), "back.safetensors")` writes a trained model
        under the names and in the layout of its source. What variables do not hold is as in the
        source, see `runner.restoration.inversion.invert`.

        Args:
          values: the model, or variable -> value for any variables of the plan.
          scaffold: the scaffold; may be left out if the plan restores from one only.

        Raises:
          ConfigError: when it is not clear which scaffold, or a value has no variable.
          PlanError: when a value has no inverse, because one of its rules has none.
          CheckpointError: when the checkpoint cannot be read.
        """
        restored = [name for name in self.sources if self.restored(name)]
        chosen = restored[0] if scaffold is None and len(restored) == 1 else scaffold or ""
        named = values if isinstance(values, Mapping) else eager_variables(values)
        values = {
            name: np.asarray(getattr(v, "numpy", lambda v=v: v)()) for name, v in named.items()
        }
        pinned = [(origin.spec.path, origin.spec.digest) for origin in self.origins.get(chosen, ())]
        inverse = invert(self, chosen, values, open_reader=lambda: open_pinned(pinned))
        if inverse.lost:
            cause = "its expression has no inverse"
            raise PlanError.of(
                f"values of {chosen} have no inverse: {inverse.lost_notice}",
                cause,
                "leave these variables out of the values",
            )
        return dict(inverse.tensors)

    def write_provenance(self, directory: str | Path) -> None:
        """Writes the provenance into the directory of the model's checkpoints.

        `runner inspect PATH --provenance` shows it, and a warm start from one of these
        checkpoints continues the chain.
        """
        text = json.dumps(self.provenance(), indent=2, allow_nan=False)
        (Path(directory) / PROVENANCE).write_text(f"{text}\n")
