"""Ctrl-C, or SIGTERM, in the middle of what must be done whole."""

from __future__ import annotations

import signal

import pytest

from pte_cli.interrupts import interrupts_later


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_the_end_of_the_block(number):
    done = []

    def interrupted():
        with interrupts_later():
            signal.raise_signal(number)
            done.append("whole")

    before = signal.signal(number, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert done == ["whole"]
        assert signal.getsignal(number) is signal.default_int_handler
        with interrupts_later():
            done.append("quiet")
    finally:
        signal.signal(number, before)
    assert done == ["whole", "quiet"]
