"""From images and attacks to a number with an interval."""

from typing import TYPE_CHECKING

from enresnet.lazy import load_on_first_use

if TYPE_CHECKING:
    from enresnet.evaluation.measure import evaluate as evaluate
    from enresnet.evaluation.measure import transfer as transfer
    from enresnet.evaluation.measure import transfer_matrix as transfer_matrix
    from enresnet.evaluation.result import Accuracy as Accuracy
    from enresnet.evaluation.result import Evaluation as Evaluation
    from enresnet.evaluation.scoring import score as score
    from enresnet.evaluation.statistics import accuracy_interval as accuracy_interval
    from enresnet.evaluation.statistics import compare as compare
    from enresnet.evaluation.statistics import paired_difference as paired_difference

__all__ = load_on_first_use(
    __name__,
    {
        "measure": "evaluate transfer transfer_matrix",
        "result": "Accuracy Evaluation",
        "scoring": "score",
        "statistics": "accuracy_interval compare paired_difference",
    },
)
