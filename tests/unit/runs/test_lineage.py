from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from runner.config.schema import TrackingConfig
from runner.lineage import main
from runner.runs.provenance import Ancestor, lineage, name_tracked_run, source_run_tags
from runner.runs.run_directory import RunDirectory, RunRecord
from runner.system.status import Status
from runner.tracking import RunStore, open_store
from runner.tracking.journal_store import JournalStore
from runner.tracking.mlflow_store import MlflowStore
from runner.tracking.tracking_directory import Opening, Position, TrackingDirectory


def make_run(root: Path, name: str, **sources: str) -> Path:
    path = root / name / "001"
    (path / "best").mkdir(parents=True)
    record = RunRecord(name, "f", Status.FINISHED, {}, objective=0.25, sources=sources)
    RunDirectory(path).write(record)
    return path


@pytest.fixture
def family(tmp_path: Path) -> Path:
    """lstm_cnn <- digits_cnn, and <- short_sequences <- digits_cnn."""
    cnn = f"{make_run(tmp_path, 'digits_cnn')}/best/model.ckpt-10"
    short = make_run(tmp_path, "short_sequences", cnn=cnn)
    return make_run(
        tmp_path, "lstm_cnn", cnn=cnn, head="/models/head", lstm=f"{short}/best/model.ckpt-15"
    )


def test_a_directory_leads_to_all_that_it_came_from(family: Path, tmp_path: Path) -> None:
    cnn = Ancestor(f"digits_cnn  {tmp_path}/digits_cnn/001  FINISHED, objective 0.25", {})
    short = f"short_sequences  {tmp_path}/short_sequences/001  FINISHED, objective 0.25"
    assert lineage(str(family)) == Ancestor(
        f"lstm_cnn  {family}  FINISHED, objective 0.25",
        {"cnn": cnn, "lstm": Ancestor(short, {"cnn": cnn}), "head": Ancestor("/models/head", {})},
    )


def test_it_is_printed_as_a_tree_without_importing_mlflow(family: Path) -> None:
    script = (
        "import sys; from runner.lineage import main\n"
        "assert main(sys.argv[1:]) == 0\n"
        "assert not {'mlflow', 'tensorflow'} & set(sys.modules)\n"
    )
    command = [sys.executable, "-c", script, str(family)]
    printed = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True).stdout
    assert [line.strip().split("  ")[0] for line in printed.splitlines()] == [
        "lstm_cnn",
        "├── cnn: digits_cnn",
        "├── head: /models/head",
        "└── lstm: short_sequences",
        "└── cnn: digits_cnn",
    ]


def test_a_directory_that_is_no_run_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path)]) == 2
    assert f"runner.lineage: {tmp_path} is no run" in capsys.readouterr().err
    assert main(["nope", "--uri", f"sqlite:///{tmp_path}/mlflow.db"]) == 2
    assert f"run nope cannot be read\n  cause: there is no {tmp_path}/m" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_runs_are_linked_by_id_and_else_by_directory(
    family: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = dict(RunDirectory(family).require().sources)
    cnn, short = str(tmp_path / "digits_cnn/001"), str(tmp_path / "short_sequences/001")
    assert source_run_tags(sources, RunStore()) == {
        "runner.source_run.cnn": cnn,
        "runner.source_run.lstm": short,
    }
    known = {Path(cnn): "abc"}
    monkeypatch.setattr(JournalStore, "__init__", lambda self: None)
    monkeypatch.setattr(JournalStore, "run_id", lambda self, directory: known.get(directory))
    assert source_run_tags(sources, JournalStore()) == {  # type: ignore[call-arg]
        "runner.source_run.cnn": "abc",
        "runner.source_run.lstm": short,
    }


def test_an_id_leads_to_all_that_it_came_from(
    family: Path, tmp_path: Path, database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = f"sqlite:///{database}"
    store = MlflowStore(uri)

    def record(uid: str, tags: dict[str, str]) -> str:
        run = store.open_run(Opening(uid, "digits", uid, tags), None, None)
        run.finish(Status.FINISHED, "")
        return run.run_id

    cnn = record("cnn", {})
    short = tmp_path / "short_sequences/001"
    run_id = record(
        "lstm_cnn",
        {
            "runner.source.cnn": "/gone/best/model.ckpt-10",
            "runner.source.cnn.digest": "sha256:0123",
            "runner.source_run.cnn": cnn,
            "runner.source.lstm": f"{short}/best/model.ckpt-15",
            "runner.source_run.lstm": str(short),
            "runner.source.head": "/models/head",
        },
    )
    found = lineage(run_id, uri)
    assert found.label == f"digits  run {run_id}  FINISHED"
    assert found.sources["cnn"] == Ancestor(f"digits  run {cnn}  FINISHED", {})
    assert found.sources["lstm"].label.startswith("short_sequences  ")
    assert list(found.sources["lstm"].sources) == ["cnn"]
    assert found.sources["head"] == Ancestor("/models/head", {})
    assert main(["0" * 32, "--uri", uri]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_a_run_that_the_store_has_named_is_named_in_its_provenance(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = RunDirectory(make_run(tmp_path, "digits"))
    uri = "http://host"
    store = open_store(TrackingConfig(uri=uri), {})
    own, _, copy = directory.provenances
    named = {"schema": 1, "run": {"run_id": None, "run_dir": "x"}}
    name_tracked_run(directory, store)
    assert not own.exists()
    own.write_text(json.dumps(named))
    copy.write_text("{")  # The machine died before it was on the disk.
    name_tracked_run(directory, store)
    assert json.loads(own.read_text()) == json.loads(copy.read_text()) == named
    files = TrackingDirectory(directory.path)
    files.delivery_lock(uri)
    files.write_position(uri, Position("abc"))
    name_tracked_run(directory, store)
    named["run"] = {"run_id": "abc", "run_dir": "x"}
    assert json.loads(own.read_text()) == json.loads(copy.read_text()) == named
    for other in ('{"schema": 0}', "{"):
        own.write_text(other)
        name_tracked_run(directory, store)
        assert own.read_text() == other
    assert f"{own} is not the provenance of a checkpoint" in caplog.text
