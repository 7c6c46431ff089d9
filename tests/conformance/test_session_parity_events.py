"""runner's monitored sessions do what TensorFlow's do, in the same order."""

from __future__ import annotations

import collections
import traceback
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

import runner
from tests.tiny.session_events import Events, Model, on_both

# The classes of one side: TensorFlow's own, and ours in their place.
BOTH = pytest.mark.parametrize("api", [tf.train, runner], ids=["tensorflow", "runner"])

Point = collections.namedtuple("Point", ["x", "y"])


def without_summaries(**kwargs: Any) -> dict[str, Any]:
    return {"log_step_count_steps": None, "save_summaries_steps": None, **kwargs}


def test_a_fresh_start_is_initialised_in_tensorflows_order(tmp_path: Path) -> None:
    def play(api: Any, events: Events) -> None:
        model = Model(api, events)
        directory = str(tmp_path / api.__name__)
        hooks = [events.hook("a", fetches=model.sum), events.hook("b")]
        with api.MonitoredTrainingSession(
            checkpoint_dir=directory,
            scaffold=model.scaffold,
            hooks=hooks,
            chief_only_hooks=[events.hook("chief")],
            save_checkpoint_steps=1,
            **without_summaries(),
        ) as session:
            assert isinstance(session, tf.train.MonitoredSession)
            nothing, total = session.run([model.train_op, model.sum])
            events.append(f"run gives {nothing} and {total:g}")
            events.append(f"run gives {session.run(model.sum, {model.feed: 2.0}):g}")
        assert session.should_stop()

    theirs, ours = on_both(play)
    assert ours == theirs
    order = ["chief: begin, finalized False", "init_op", "init_fn", "ready_for_local_init_op"]
    order += ["local_init_op", "ready_op", "chief: after_create_session, finalized True"]
    order += ["run gives None and 11", "a: end, stopped False"]
    assert [event for event in ours if event in order] == order


def test_a_checkpoint_is_restored_instead(tmp_path: Path) -> None:
    def play(api: Any, events: Events) -> None:
        directory = str(tmp_path / api.__name__)
        for _ in range(2):
            with tf.Graph().as_default():
                model = Model(api, events)
                with api.MonitoredTrainingSession(
                    checkpoint_dir=directory,
                    scaffold=model.scaffold,
                    hooks=[events.hook()],
                    **without_summaries(),
                ) as session:
                    session.run(model.train_op)
                    events.append(f"step {session.run(model.step)}")

    theirs, ours = on_both(play)
    assert ours == theirs
    second = ours[ours.index("step 1") :]
    assert "restore model.ckpt-1" in second
    assert "step 2" in second
    assert "init_op" not in second
    assert "init_fn" not in second


def test_fetches_and_feeds_of_hooks_are_merged() -> None:
    def play(api: Any, events: Events) -> None:
        model = Model(api, events)
        hooks = [
            events.hook("none"),
            events.hook("feeds", feed={model.feed: 5.0}),
            events.hook(
                "fetches", fetches={"sum": model.sum, "more": [model.after, model.train_op]}
            ),
            events.hook("point", fetches=Point(model.sum, (model.other,))),
        ]
        with api.MonitoredSession(api.ChiefSessionCreator(model.scaffold), hooks) as session:
            for _ in range(3):
                events.append(str(session.run(model.sum)))
                found = session.run({"x": model.sum}, feed_dict={model.other: 1.0})
                events.append(f"x is {found['x']:g}")

    theirs, ours = on_both(play)
    assert ours == theirs
    assert ours.count("x is 6") == 3


@BOTH
def test_a_tensor_fed_twice_is_an_error(api: Any) -> None:
    with tf.Graph().as_default():
        events = Events()
        model = Model(api, events)
        first, second = (events.hook(name, feed={model.feed: 1.0}) for name in "ab")
        creator = api.ChiefSessionCreator(model.scaffold)
        with (
            api.MonitoredSession(creator, [first, second]) as session,
            pytest.raises(RuntimeError, match="Same tensor is fed by two hooks"),
        ):
            session.run(model.sum)
    with tf.Graph().as_default():
        model = Model(api, events)
        hook = events.hook(feed={model.feed: 1.0})
        creator = api.ChiefSessionCreator(model.scaffold)
        with (
            api.MonitoredSession(creator, [hook]) as session,
            pytest.raises(RuntimeError, match="fed by a SessionRunHook and user"),
        ):
            session.run(model.sum, {model.feed: 2.0})


@BOTH
def test_run_options_of_hooks_are_merged_and_metadata_handed_out(api: Any) -> None:
    with tf.Graph().as_default():
        events = Events()
        model = Model(api, events)
        traces = events.hook("a", options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE))
        limits = events.hook("b", options=tf.RunOptions(timeout_in_ms=60_000))
        creator = api.ChiefSessionCreator(model.scaffold)
        with api.MonitoredSession(creator, [traces, limits]) as session:
            metadata = tf.RunMetadata()
            for _ in range(2):
                session.run(model.sum, run_metadata=metadata)
        for values in limits.values:
            assert values.options.trace_level == tf.RunOptions.FULL_TRACE
            assert values.options.timeout_in_ms == 60_000
            assert values.run_metadata is metadata
        assert metadata.step_stats.dev_stats


@BOTH
def test_nested_fetches_keep_their_structure(api: Any) -> None:
    with tf.Graph().as_default():
        model = Model(api, Events())
        sparse = tf.sparse.SparseTensor([[0, 1]], [2.0], [2, 2])
        fetches = {
            "point": Point(model.sum, [model.train_op]),
            "ordered": collections.OrderedDict(b=model.sum, a=(model.other, sparse)),
            "sparse": sparse,
            "op": model.train_op,
        }
        with api.MonitoredSession(api.ChiefSessionCreator(model.scaffold)) as session:
            for _ in range(3):
                found = session.run(fetches)
                assert found["point"] == Point(11.0, [None])
                assert list(found["ordered"]) == ["b", "a"]
                assert type(found["ordered"]) is collections.OrderedDict
                assert type(found["sparse"]) is tf.SparseTensorValue
                assert found["sparse"].indices.tolist() == [[0, 1]]
                assert found["op"] is None


@pytest.mark.parametrize("error", [tf.errors.AbortedError, tf.errors.UnavailableError])
def test_a_preempted_session_is_recovered(tmp_path: Path, error: type[tf.errors.OpError]) -> None:
    def play(api: Any, events: Events) -> None:
        model = Model(api, events)
        failures = [error(None, None, "gone")]

        def fail(context: Any, values: Any) -> None:
            if values.results == 3 and failures:
                raise failures.pop()

        hook = events.hook("failing", fetches=model.after, after=fail)
        creator = api.ChiefSessionCreator(model.scaffold, checkpoint_dir=str(tmp_path / "x"))
        with api.MonitoredSession(creator, [hook, tf.train.StopAtStepHook(5)]) as session:
            while not session.should_stop():
                session.run(model.train_op)
        assert len(hook.sessions) == 2
        assert hook.sessions[0] is not hook.sessions[1]

    theirs, ours = on_both(play)
    assert ours == theirs
    assert ours.count("init_op") == 2
    assert ours[-1] == "failing: end, stopped False"


@BOTH
@pytest.mark.parametrize("error", [tf.errors.AbortedError, tf.errors.UnavailableError])
def test_a_singular_session_does_not_recover(api: Any, error: type[tf.errors.OpError]) -> None:
    with tf.Graph().as_default():
        events = Events()
        model = Model(api, events)

        def fail(context: Any, values: Any) -> None:
            raise error(None, None, "gone")

        with (
            pytest.raises(error, match="gone"),
            api.SingularMonitoredSession([events.hook(after=fail)], model.scaffold) as session,
        ):
            session.run(model.train_op)
        assert events.count("init_op") == 1


@pytest.mark.parametrize("error", [StopIteration, tf.errors.OutOfRangeError])
@pytest.mark.parametrize("kind", ["MonitoredSession", "SingularMonitoredSession"])
def test_the_end_of_input_ends_the_session(error: Any, kind: str) -> None:
    def end_of_input() -> None:
        raise StopIteration if error is StopIteration else error(None, None, "no more")

    def play(api: Any, events: Events) -> None:
        model = Model(api, events)
        with getattr(api, kind)(hooks=[events.hook()]) as session:
            session.run(model.train_op)
            end_of_input()
        events.append(f"closed {session.should_stop()} {model.sum.name}")

    theirs, ours = on_both(play)
    assert ours == theirs
    assert ours[-2:] == ["hook: end, stopped False", "closed True sum:0"]


@pytest.mark.parametrize("kind", ["MonitoredSession", "SingularMonitoredSession"])
def test_other_errors_are_raised_with_their_traceback(kind: str) -> None:
    def play(api: Any, events: Events) -> None:
        def fault_of_the_user() -> None:
            raise ZeroDivisionError("mine")

        model = Model(api, events)

        def train() -> None:
            with getattr(api, kind)(hooks=[events.hook()]) as session:
                session.run(model.train_op)
                fault_of_the_user()

        with pytest.raises(ZeroDivisionError, match="mine") as raised:
            train()
        frames = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
        events.append(frames[-1])

    theirs, ours = on_both(play)
    assert ours == theirs
    assert ours[-1] == "fault_of_the_user"
    assert not any(": end," in event for event in ours)


@BOTH
def test_an_error_of_an_operation_names_it(api: Any) -> None:
    with tf.Graph().as_default():
        value = tf.placeholder(tf.float32, [], name="value")
        checked = tf.debugging.check_numerics(value, "not finite", name="checked")

        def train() -> None:
            with api.MonitoredSession() as session:
                for number in (1.0, 2.0, float("nan")):
                    assert session.run(checked, {value: number}) == number

        with pytest.raises(tf.errors.InvalidArgumentError, match="not finite") as raised:
            train()
        assert raised.value.op.name == "checked"
        assert "Detected at node 'checked' defined at" in raised.value.message


def test_step_functions() -> None:
    def play(api: Any, events: Events) -> None:
        model = Model(api, events)

        def step_fn(step_context: Any) -> Any:
            raw = step_context.session.run(model.sum, {model.feed: 3.0})
            events.append(f"without hooks {raw}")
            hooked = step_context.run_with_hooks(model.sum, feed_dict={model.feed: 4.0})
            if hooked != 14.0 or len(events) > 20:
                step_context.request_stop()
            return hooked

        with api.MonitoredSession(hooks=[events.hook(fetches=model.step)]) as session:
            events.append(str(session.run_step_fn(step_fn)))
            with pytest.raises(ValueError, match="step_context"):
                session.run_step_fn(lambda wrong: None)
            while not session.should_stop():
                session.run_step_fn(step_fn)
        events.append("left by StopIteration")

    theirs, ours = on_both(play)
    assert ours == theirs
    assert "14.0" in ours
    assert ours[-1] == "left by StopIteration"


@BOTH
def test_a_hook_can_ask_to_stop(api: Any) -> None:
    with tf.Graph().as_default():
        model = Model(api, Events())
        hook = Events().hook(after=lambda context, values: context.request_stop())
        with api.MonitoredSession(hooks=[hook]) as session:
            session.run(model.train_op)
            assert session.should_stop()
            with pytest.raises(RuntimeError, match="after should_stop requested"):
                session.run(model.train_op)


@BOTH
def test_a_closed_session_says_so(api: Any) -> None:
    with tf.Graph().as_default():
        model = Model(api, Events())
        session = api.MonitoredSession()
        session.run(model.train_op)
        session.close()
        assert session.should_stop()
        with pytest.raises(RuntimeError, match="already closed"):
            session.close()
        assert not tf.get_default_graph().finalized


@BOTH
def test_the_raw_session_of_a_singular_session(api: Any, tmp_path: Path) -> None:
    with tf.Graph().as_default():
        model = Model(api, Events())
        saver = tf.train.Saver()
        with api.SingularMonitoredSession(checkpoint_dir=str(tmp_path)) as session:
            session.run(model.train_op)
            raw = session.raw_session()
            assert isinstance(raw, tf.Session)
            assert raw.run(model.step) == 1
            path = saver.save(raw, str(tmp_path / "x"))
    with tf.Graph().as_default():
        Model(api, Events())
        with pytest.raises(ValueError, match="Can not provide both"):
            api.SingularMonitoredSession(
                checkpoint_dir=str(tmp_path), checkpoint_filename_with_path=path
            )
    with tf.Graph().as_default():
        model = Model(api, Events())
        with api.SingularMonitoredSession(checkpoint_filename_with_path=path) as session:
            assert session.run(model.step) == 1


def test_workers_wait_for_their_chief() -> None:
    def play(api: Any, events: Events) -> None:
        server = tf.train.Server.create_local_server()
        with tf.Graph().as_default():
            weights = tf.get_variable("weights", initializer=3.0)
            scaffold = api.Scaffold()
            with pytest.raises(tf.errors.DeadlineExceededError):
                api.MonitoredTrainingSession(
                    server.target, is_chief=False, scaffold=scaffold, max_wait_secs=0
                )
        with tf.Graph().as_default():
            weights = tf.get_variable("weights", initializer=3.0)
            with api.MonitoredTrainingSession(server.target) as chief:
                events.append(f"chief {chief.run(weights)}")
                with api.MonitoredTrainingSession(
                    server.target,
                    is_chief=False,
                    hooks=[events.hook()],
                    chief_only_hooks=[events.hook("chief's")],
                ) as worker:
                    for _ in range(3):
                        events.append(f"worker {worker.run(weights)}")

    theirs, ours = on_both(play)
    assert [event.split(", ")[0][:20] for event in ours] == [
        event.split(", ")[0][:20] for event in theirs
    ]
    assert "chief 3.0" in ours
    assert ours.count("worker 3.0") == 3
