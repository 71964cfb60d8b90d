"""The policy keeps its contract."""

from pte_cli.testing import EvictionContract


class TestMyPlugin(EvictionContract):
    plugin = "my-plugin:my-plugin"


class TestMyPluginKeepsMore(EvictionContract):
    plugin = "my-plugin:my-plugin"
    options = {"recent": 3}
