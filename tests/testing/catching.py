"""A contract for one plugin, and what a failed check must say."""

from __future__ import annotations


def contract_of(base, spec):
    return type("Checked", (base,), {"plugin": spec})()


def assert_caught(contract, check, reason):
    outcome = contract.outcome(check)
    assert not outcome.passed
    assert reason in outcome.reason
    assert "\n" not in outcome.reason
