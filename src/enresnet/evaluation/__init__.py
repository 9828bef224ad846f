"""From images and attacks to a number with an interval."""

from enresnet.evaluation.accuracy import Accuracy, Evaluation
from enresnet.evaluation.measure import evaluate, transfer, transfer_matrix
from enresnet.evaluation.scoring import score
from enresnet.evaluation.statistics import accuracy_interval, compare, paired_difference

__all__ = [
    "Accuracy",
    "Evaluation",
    "accuracy_interval",
    "compare",
    "evaluate",
    "paired_difference",
    "score",
    "transfer",
    "transfer_matrix",
]
