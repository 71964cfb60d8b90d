"""Handing a trained adapter on: merged weights where there are any, else the adapter, and a card that describes it."""
