"""From images and attacks to a number with an interval."""

from typing import TYPE_CHECKING

from enresnet.common.lazy import load_on_first_use

if TYPE_CHECKING:
    from enresnet.evaluation.comparison import compare_record_groups as compare_record_groups
    from enresnet.evaluation.comparison import compare_records as compare_records
    from enresnet.evaluation.environment import hardware as hardware
    from enresnet.evaluation.environment import machine as machine
    from enresnet.evaluation.environment import versions as versions
    from enresnet.evaluation.groups import GroupComparison as GroupComparison
    from enresnet.evaluation.journal import Journals as Journals
    from enresnet.evaluation.masking.diagnosis import diagnose as diagnose
    from enresnet.evaluation.measure import evaluate as evaluate
    from enresnet.evaluation.measure import transfer as transfer
    from enresnet.evaluation.measure import transfer_matrix as transfer_matrix
    from enresnet.evaluation.measure import usual_eot as usual_eot
    from enresnet.evaluation.model_identity import digest_of as digest_of
    from enresnet.evaluation.model_identity import identify as identify
    from enresnet.evaluation.result import Accuracy as Accuracy
    from enresnet.evaluation.result import Evaluation as Evaluation
    from enresnet.evaluation.runner import Shard as Shard
    from enresnet.evaluation.runner import WorkItem as WorkItem
    from enresnet.evaluation.scoring import score as score
    from enresnet.evaluation.statistics import Comparison as Comparison
    from enresnet.evaluation.statistics import accuracy_interval as accuracy_interval
    from enresnet.evaluation.statistics import compare as compare
    from enresnet.evaluation.statistics import paired_difference as paired_difference

__all__ = load_on_first_use(
    __name__,
    {
        "comparison": "compare_record_groups compare_records",
        "model_identity": "digest_of identify",
        "environment": "hardware machine versions",
        "groups": "GroupComparison",
        "journal": "Journals",
        "masking": "diagnose",
        "measure": "evaluate transfer transfer_matrix usual_eot",
        "result": "Accuracy Evaluation",
        "scoring": "score",
        "statistics": "Comparison accuracy_interval compare paired_difference",
        "runner": "Shard WorkItem",
    },
)
