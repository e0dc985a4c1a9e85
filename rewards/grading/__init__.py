"""Answer extraction and comparison by one documented policy (docs/grading.md)."""

from rewards.grading.extract import parse_text
from rewards.grading.grader import AnswerFormat, AnswerRegion, Grader, Reason, Sample, Verdict

__all__ = ["AnswerFormat", "AnswerRegion", "Grader", "Reason", "Sample", "Verdict", "parse_text"]
