"""From images and attacks to a number with an interval."""

from enresnet.evaluation.accuracy import Accuracy, Evaluation, evaluate, score, transfer
from enresnet.evaluation.statistics import accuracy_interval, paired_difference

__all__ = [
    "Accuracy",
    "Evaluation",
    "accuracy_interval",
    "evaluate",
    "paired_difference",
    "score",
    "transfer",
]
