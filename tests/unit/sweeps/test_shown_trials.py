from __future__ import annotations

from runner.config.masking import Mask
from runner.config.schema import MaskConfig
from runner.sweeps.attempt import Attempt
from runner.sweeps.conclusion import shown_trials


def test_several_secrets_of_a_key_stay_apart_and_one_needs_no_number() -> None:
    values = [("one", "a"), ("two", "a"), ("one", "a")]
    trials = [
        Attempt(
            number,
            1,
            (f"data.token={token}", f"+data.pin_token={pin}", f"seed={number}"),
            {"data.token": token, "data.pin_token": pin, "seed": str(number)},
        )
        for number, (token, pin) in enumerate(values)
    ]
    shown = shown_trials([trials[2], trials[1], trials[0]], Mask(MaskConfig(), {}))
    assert [dict(each.values) for each in shown] == [
        {"data.token": "***1", "data.pin_token": "***", "seed": "2"},
        {"data.token": "***2", "data.pin_token": "***", "seed": "1"},
        {"data.token": "***1", "data.pin_token": "***", "seed": "0"},
    ]
    assert shown[1].overrides == ("data.token=***", "+data.pin_token=***", "seed=1")
