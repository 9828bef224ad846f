"""From images and attacks to a number with an interval."""

from typing import TYPE_CHECKING

from enresnet.common.lazy import load_on_first_use

if TYPE_CHECKING:
    from enresnet.evaluation.accuracy import Accuracy as Accuracy
    from enresnet.evaluation.comparison import ComparisonTable as ComparisonTable
    from enresnet.evaluation.curve import AccuracyCurve as AccuracyCurve
    from enresnet.evaluation.curve import CurvePoint as CurvePoint
    from enresnet.evaluation.curve import accuracy_curve as accuracy_curve
    from enresnet.evaluation.environment import hardware as hardware
    from enresnet.evaluation.environment import machine as machine
    from enresnet.evaluation.environment import versions as versions
    from enresnet.evaluation.evaluation import Evaluation as Evaluation
    from enresnet.evaluation.groups import GroupComparison as GroupComparison
    from enresnet.evaluation.groups import compare_groups as compare_groups
    from enresnet.evaluation.groups import group_accuracy as group_accuracy
    from enresnet.evaluation.journal import Journals as Journals
    from enresnet.evaluation.masking.checks import MaskingCheck as MaskingCheck
    from enresnet.evaluation.masking.diagnosis import Diagnosis as Diagnosis
    from enresnet.evaluation.masking.diagnosis import diagnose as diagnose
    from enresnet.evaluation.matrix import TransferMatrix as TransferMatrix
    from enresnet.evaluation.measure import evaluate as evaluate
    from enresnet.evaluation.measure import transfer as transfer
    from enresnet.evaluation.measure import transfer_matrix as transfer_matrix
    from enresnet.evaluation.model_identity import Identity as Identity
    from enresnet.evaluation.model_identity import digest_of as digest_of
    from enresnet.evaluation.model_identity import identify as identify
    from enresnet.evaluation.options import EvaluationOptions as EvaluationOptions
    from enresnet.evaluation.results import Results as Results
    from enresnet.evaluation.results import load_results as load_results
    from enresnet.evaluation.runner import ImageSink as ImageSink
    from enresnet.evaluation.runner import Shard as Shard
    from enresnet.evaluation.runner import WorkItem as WorkItem
    from enresnet.evaluation.scoring import score as score
    from enresnet.evaluation.session import Session as Session
    from enresnet.evaluation.statistics import Comparison as Comparison
    from enresnet.evaluation.statistics import SharedNoise as SharedNoise
    from enresnet.evaluation.statistics import accuracy_interval as accuracy_interval
    from enresnet.evaluation.statistics import compare_scores as compare_scores
    from enresnet.evaluation.statistics import holm as holm
    from enresnet.evaluation.statistics import paired_difference as paired_difference

__all__ = load_on_first_use(
    __name__,
    {
        "accuracy": "Accuracy",
        "comparison": "ComparisonTable",
        "curve": "AccuracyCurve CurvePoint accuracy_curve",
        "environment": "hardware machine versions",
        "evaluation": "Evaluation",
        "groups": "GroupComparison compare_groups group_accuracy",
        "journal": "Journals",
        "masking.checks": "MaskingCheck",
        "masking.diagnosis": "Diagnosis diagnose",
        "matrix": "TransferMatrix",
        "measure": "evaluate transfer transfer_matrix",
        "model_identity": "Identity digest_of identify",
        "options": "EvaluationOptions",
        "results": "Results load_results",
        "runner": "ImageSink Shard WorkItem",
        "scoring": "score",
        "session": "Session",
        "statistics": (
            "Comparison SharedNoise accuracy_interval compare_scores holm paired_difference"
        ),
    },
)
