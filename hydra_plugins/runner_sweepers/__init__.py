"""The sweepers that `hydra/sweeper` names; the work is done in `runner.sweeps`.

Hydra instantiates sweepers only from the top-level package `hydra_plugins`, and imports all of it
for every command. So a sweeper's own modules are imported only when a sweep starts.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar

from hydra.plugins.sweeper import Sweeper


class LazySweeper(Sweeper):
    """A sweeper that imports the class that does the work when a sweep starts.

    Attributes:
      module: the module of that class, which has the same name as the subclass.
      extra: the package that the module needs and the extra of its name installs; empty for none.
    """

    module: ClassVar[str]
    extra: ClassVar[str] = ""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self._sweeper: Sweeper

    def setup(self, **context: Any) -> None:
        """Builds the sweeper that does the work, and passes on what Hydra passes.

        Raises:
          ConfigError: the extra is not installed.
        """
        if self.extra:
            from runner.sweeps.launchers import require_extra

            require_extra(self.extra, f"hydra/sweeper={self.extra}")
        self._sweeper = getattr(import_module(self.module), type(self).__name__)(**self.settings)
        self._sweeper.setup(**context)

    def sweep(self, arguments: list[str]) -> Any:
        """Sweeps; raises what `runner.sweeps.sweeper.RunnerSweeper.sweep` raises."""
        return self._sweeper.sweep(arguments)
