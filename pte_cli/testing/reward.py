"""What a reward must do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pte_cli.testing.contract import Contract, require


class RewardContract(Contract):
    """Checks of a reward on a small batch of text.

    prompts, completions, columns: the batch; set them to what the reward is for. A completion's ids are made up.
    """

    kind: ClassVar[str] = "reward"
    prompts: ClassVar[Sequence[Any]] = ("1 + 1 =", "2 + 2 =", "3 * 3 =", "10 - 4 =", "say nothing")
    completions: ClassVar[Sequence[Any]] = ("2", "the answer is \\boxed{4}", "8", "<think>10 - 4 is 6</think> 6", "")
    columns: ClassVar[Mapping[str, Sequence[Any]]] = {
        "answer": ("2", "4", "9", "6", ""),
        "solution": ("\\boxed{2}", "\\boxed{4}", "\\boxed{9}", "\\boxed{6}", ""),
    }

    def test_one_value_per_completion(self) -> None:
        """As many values as completions, in a sequence."""
        values = self._values()
        require(isinstance(values, Sequence), f"it returned {type(values).__name__}, not a list")
        require(
            len(values) == len(self.completions),
            f"it returned {len(values)} values for {len(self.completions)} completions",
        )

    def test_numbers_or_none(self) -> None:
        """Each value is a finite float, or None where the sample has no reward."""
        for i, value in enumerate(self._values()):
            good = value is None or (isinstance(value, float | int) and not isinstance(value, bool))
            require(good, f"value {i} is {value!r}, a {type(value).__name__}; it must be a float or None")
            require(value is None or math.isfinite(value), f"value {i} is {value!r}; it must be finite")

    def test_deterministic(self) -> None:
        """The same batch scores the same again, also by a reward built anew."""
        reward = self.make()
        first = self._values(reward)
        require(list(self._values(reward)) == list(first), "called a second time it returned other values")
        require(list(self._values(self.make())) == list(first), "built anew it returned other values")

    def test_order_does_not_matter(self) -> None:
        """A completion's value does not depend on its place in the batch or on the others in it."""
        reward, count = self.make(), len(self.completions)
        first = list(self._values(reward))
        for name, order in (("reversed", list(range(count))[::-1]), ("alone", None)):
            if order is None:
                found = [self._values(reward, [i])[0] for i in range(count)]
            else:
                values = self._values(reward, order)
                found = [values[order.index(i)] for i in range(count)]
            require(found == first, f"the batch {name} scores {found} instead of {first}")

    def test_extra_columns_accepted(self) -> None:
        """Columns of the data that it does not need are ignored: it takes `**_`."""
        plain = list(self._values())
        try:
            more = list(self._values(extra={"some_other_column": list(range(len(self.completions)))}))
        except TypeError as error:
            require(False, f"it refuses a column it does not know ({error}); accept **_ and ignore the rest")
        require(plain == more, "a column it does not know changes its values")

    def _values(
        self, reward: Any = None, order: Sequence[int] | None = None, extra: Mapping[str, Sequence[Any]] | None = None
    ) -> Sequence[Any]:
        order = range(len(self.completions)) if order is None else order
        ids = [[ord(letter) for letter in str(completion)] for completion in self.completions]
        columns = {**self.columns, **(extra or {})}

        def picked(column: Sequence[Any]) -> list[Any]:
            return [column[i] for i in order]

        return (reward or self.make())(
            prompts=picked(self.prompts),
            completions=picked(self.completions),
            completion_ids=picked(ids),
            **{name: picked(column) for name, column in columns.items()},
        )
