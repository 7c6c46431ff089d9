from __future__ import annotations

import signal

from runner.sweeps.slurm import may_be_requeued, requeue_signals


def test_the_signal_is_submitits_where_it_handles_one() -> None:
    before = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    try:
        preempted = {"SUBMITIT_EXECUTOR": "slurm", "SUBMITIT_PREEMPT_SIGNAL": "USR1"}
        assert requeue_signals(preempted) == (signal.SIGUSR1,)
        assert requeue_signals({"SUBMITIT_PREEMPT_SIGNAL": "USR1"}) == ()
        # No handler: the process of a sweep that such a job started.
        assert requeue_signals({"SUBMITIT_EXECUTOR": "slurm"}) == ()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_slurm_alone_starts_jobs_again_by_itself() -> None:
    assert may_be_requeued({"SUBMITIT_EXECUTOR": "slurm"})
    assert not may_be_requeued({"SUBMITIT_EXECUTOR": "local"})
    assert not may_be_requeued({})
