"""Live bytes by part, by hand."""

from __future__ import annotations

import torch

from pte_cli.profile.live import LiveBytes


def test_parts_by_label_shape_and_relabelling():
    with LiveBytes(vocab=100) as live:
        with live.label("cache"):
            cache = torch.zeros(10)
        activations, logits = torch.zeros(20), torch.zeros(3, 100)
        indices = torch.zeros(3, 100, dtype=torch.int64)
        assert live.parts == {"cache": 40, "activations": 80 + 2400, "logits": 1200}
        del indices
        live.relabel(activations, "gradients")
        view = activations.view(4, 5)
        assert {k: v for k, v in live.parts.items() if v} == {"cache": 40, "gradients": 80, "logits": 1200}
        del activations
        assert live.parts["gradients"] == 80, "the view keeps the storage"
        del cache, logits, view
    assert live.current == 0
    assert not any(live.parts.values())
    assert live.peak == 40 + 80 + 1200 + 2400
    assert live.highest.parts == {"cache": 40, "activations": 2480, "logits": 1200}


def test_a_new_phase_starts_from_what_is_alive():
    with LiveBytes() as live:
        torch.zeros(100)
        kept = torch.zeros(50)
        live.restart()
        assert live.peak == 200
        torch.zeros(25)
        assert live.peak == 300
        del kept


def test_what_a_span_saw_can_happen_again():
    with LiveBytes() as live:
        kept = torch.zeros(10)
        with live.span() as rise, live.label("step"):
            torch.zeros(100)
        assert rise == {"activations": 0, "step": 400}
        assert live.peak == 440
        more = torch.zeros(30)
        live.rise(rise)
        assert live.peak == 40 + 120 + 400
        assert live.highest.parts == {"activations": 160, "step": 400}
        live.rise(rise)
        assert (live.peak, live.current) == (560, 160)
        del kept, more
