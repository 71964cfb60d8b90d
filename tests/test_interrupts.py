"""Ctrl-C in the middle of what must be done whole."""

from __future__ import annotations

import signal

import pytest

from pte_cli.interrupts import interrupts_later


def test_ctrl_c_waits_for_the_end_of_the_block():
    done = []

    def interrupted():
        with interrupts_later():
            signal.raise_signal(signal.SIGINT)
            done.append("whole")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert done == ["whole"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        with interrupts_later():
            done.append("quiet")
    finally:
        signal.signal(signal.SIGINT, before)
    assert done == ["whole", "quiet"]
