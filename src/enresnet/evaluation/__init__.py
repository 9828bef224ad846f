"""From images and attacks to a number with an interval."""

from typing import TYPE_CHECKING

from enresnet.common.lazy import load_on_first_use

if TYPE_CHECKING:
    from enresnet.evaluation.adversarial_sets import AdversarialSets as AdversarialSets
    from enresnet.evaluation.adversarial_sets import with_eight_bit as with_eight_bit
    from enresnet.evaluation.captions import details_caption as details_caption
    from enresnet.evaluation.captions import evaluation_caption as evaluation_caption
    from enresnet.evaluation.comparison import compare_record_groups as compare_record_groups
    from enresnet.evaluation.comparison import compare_records as compare_records
    from enresnet.evaluation.environment import hardware as hardware
    from enresnet.evaluation.environment import machine as machine
    from enresnet.evaluation.environment import versions as versions
    from enresnet.evaluation.groups import GroupComparison as GroupComparison
    from enresnet.evaluation.journal import Journals as Journals
    from enresnet.evaluation.masking.diagnosis import diagnose as diagnose
    from enresnet.evaluation.masking.diagnosis import diagnose_session as diagnose_session
    from enresnet.evaluation.matrix import TransferMatrix as TransferMatrix
    from enresnet.evaluation.measure import evaluate as evaluate
    from enresnet.evaluation.measure import transfer as transfer
    from enresnet.evaluation.measure import transfer_matrix as transfer_matrix
    from enresnet.evaluation.model_identity import Identity as Identity
    from enresnet.evaluation.model_identity import digest_of as digest_of
    from enresnet.evaluation.model_identity import identify as identify
    from enresnet.evaluation.options import EvaluationOptions as EvaluationOptions
    from enresnet.evaluation.result import Accuracy as Accuracy
    from enresnet.evaluation.result import Evaluation as Evaluation
    from enresnet.evaluation.runner import ImageSink as ImageSink
    from enresnet.evaluation.runner import Shard as Shard
    from enresnet.evaluation.runner import WorkItem as WorkItem
    from enresnet.evaluation.scoring import score as score
    from enresnet.evaluation.sections import ChosenAttack as ChosenAttack
    from enresnet.evaluation.sections import Sections as Sections
    from enresnet.evaluation.session import Session as Session
    from enresnet.evaluation.statistics import Comparison as Comparison
    from enresnet.evaluation.statistics import accuracy_interval as accuracy_interval
    from enresnet.evaluation.statistics import compare as compare
    from enresnet.evaluation.statistics import paired_difference as paired_difference

__all__ = load_on_first_use(
    __name__,
    {
        "adversarial_sets": "AdversarialSets with_eight_bit",
        "captions": "details_caption evaluation_caption",
        "comparison": "compare_record_groups compare_records",
        "model_identity": "Identity digest_of identify",
        "environment": "hardware machine versions",
        "groups": "GroupComparison",
        "journal": "Journals",
        "masking.diagnosis": "diagnose diagnose_session",
        "matrix": "TransferMatrix",
        "measure": "evaluate transfer transfer_matrix",
        "options": "EvaluationOptions",
        "result": "Accuracy Evaluation",
        "scoring": "score",
        "statistics": "Comparison accuracy_interval compare paired_difference",
        "runner": "ImageSink Shard WorkItem",
        "sections": "ChosenAttack Sections",
        "session": "Session",
    },
)
