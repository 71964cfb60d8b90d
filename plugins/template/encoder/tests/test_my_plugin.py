"""The encoder keeps its contract."""

from pte_cli.testing import EncoderContract


class TestMyPlugin(EncoderContract):
    plugin = "my-plugin:my-plugin"


class TestMyPluginBounded(EncoderContract):
    plugin = "my-plugin:my-plugin"
    options = {"bound": 0.5}
