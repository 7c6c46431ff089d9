"""What a sweep and the chief of a trial on a local cluster tell each other."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.sweeps.trial import Trial

# In the environment of a chief: the trial, and the number of a descriptor that leads to the sweep.
TRIAL = "RUNNER_TRIAL"
_GO_ON, _PRUNED = "go on", "pruned"


class TrialLink:
    """The sweep's side: tells a trial what its chief does, and the chief whether it is pruned."""

    def __init__(self, trial: Trial) -> None:
        """Stores the trial."""
        self._trial = trial
        self._threads: list[threading.Thread] = []
        self._failure: BaseException | None = None

    def connect(self) -> tuple[socket.socket, str]:
        """Returns a chief's end of a new connection, and the value of its `RUNNER_TRIAL`.

        The end is to be inherited by the chief, and closed here.
        """
        ours, theirs = socket.socketpair()
        thread = threading.Thread(target=self._listen, args=(ours,), daemon=True)
        thread.start()
        self._threads.append(thread)
        told = {
            "parent": self._trial.parent,
            "values": self._trial.values,
            "number": self._trial.number,
        }
        return theirs, json.dumps({"descriptor": theirs.fileno(), **told})

    @property
    def pruned(self) -> bool:
        """Whether the chief has been told that the trial is pruned."""
        return self._trial.pruned

    def check(self) -> None:
        """Raises what went wrong when an evaluation was reported, if anything."""
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        """Waits until all is heard that the chiefs have told, which have ended.

        Raises:
          PrunedRunError: when the trial is pruned.
        """
        for thread in self._threads:
            thread.join()
        self.check()
        self._trial.check()

    def _listen(self, connection: socket.socket) -> None:
        with connection, connection.makefile("r", encoding="utf-8") as lines:
            try:
                # A line without an end is from a chief that was killed.
                while (line := lines.readline()).endswith("\n"):
                    connection.sendall(f"{self._hear(json.loads(line))}\n".encode())
            except (ConnectionResetError, BrokenPipeError):
                return  # It was killed before it had read; its exit code tells of it.
            except Exception as error:  # noqa: BLE001 - `check` raises it in the main thread
                self._failure = error

    def _hear(self, told: Mapping[str, Any]) -> str:
        if "run_dir" in told:
            self._trial.started(Path(told["run_dir"]))
        else:
            self._trial.evaluated(told["metrics"], told["step"])
        return _PRUNED if self._trial.pruned else _GO_ON


class LinkedTrial(Trial):
    """The chief's side: a trial that tells its sweep everything, and asks it about pruning."""

    def __init__(
        self, parent: str, values: Mapping[str, str], number: int, connection: socket.socket
    ) -> None:
        """Stores its arguments.

        Args:
          parent: directory of the tracked run of the sweep.
          values: swept key -> value.
          number: of the trial in its sweep.
          connection: to the sweep.
        """
        super().__init__(parent, values, self._ask, number)
        self._connection = connection
        self._answers = connection.makefile("r", encoding="utf-8")

    def started(self, run_dir: Path) -> None:
        """Tells the run's directory."""
        super().started(run_dir)
        self._tell({"run_dir": str(run_dir.absolute())})

    def _keep(self, metrics: Mapping[str, float], step: int) -> None:
        """Nothing: the sweep's side keeps the curve."""

    def close(self) -> None:
        """Closes the connection."""
        self._answers.close()
        self._connection.close()

    def _ask(self, metrics: Mapping[str, float], step: int) -> bool:
        values = {name: float(value) for name, value in metrics.items()}
        return self._tell({"step": step, "metrics": values}) == _PRUNED

    def _tell(self, content: Mapping[str, Any]) -> str:
        try:
            self._connection.sendall(f"{json.dumps(content)}\n".encode())
            return self._answers.readline().rstrip("\n")
        except (ConnectionResetError, BrokenPipeError):
            return _GO_ON  # Without the sweep's process the launcher watch ends this one.


def linked_trial(environ: Mapping[str, str]) -> LinkedTrial | None:
    """Returns the trial whose chief this process is; None in any other."""
    value = environ.get(TRIAL)
    if value is None:
        return None
    told = json.loads(value)
    connection = socket.socket(fileno=told["descriptor"])
    return LinkedTrial(told["parent"], told["values"], told["number"], connection)
