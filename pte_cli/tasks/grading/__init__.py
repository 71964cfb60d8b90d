"""Is a completion's final boxed answer the reference's? `Grader` says, with a reason."""

from pte_cli.tasks.grading.grader import Grader, Item
from pte_cli.tasks.grading.outcome import REASONS, Grade, Reason
from pte_cli.tasks.grading.version import grader_version

__all__ = ["REASONS", "Grade", "Grader", "Item", "Reason", "grader_version"]
