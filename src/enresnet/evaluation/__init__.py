"""From images and attacks to a number with an interval."""

from enresnet.evaluation.accuracy import Accuracy, Evaluation, evaluate, transfer
from enresnet.evaluation.statistics import accuracy_interval

__all__ = ["Accuracy", "Evaluation", "accuracy_interval", "evaluate", "transfer"]
