"""The reward keeps its contract, and means what it says."""

from my_plugin import MyPlugin, Options

from pte_cli.testing import RewardContract


class TestMyPlugin(RewardContract):
    plugin = "my-plugin:my-plugin"


def test_values():
    reward = MyPlugin(Options(right=2.0))
    values = reward(["?"] * 3, ["it is 4", "4 or 5", "4"], [[1]] * 3, answer=["4", "4", ""])
    assert values == [2.0, 0.0, None]
