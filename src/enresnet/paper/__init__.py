"""The paper reproduced: the studies of its theory, and the quickstart."""

from typing import TYPE_CHECKING

from enresnet.common.lazy import load_on_first_use

if TYPE_CHECKING:
    from enresnet.paper.classifier import study_classifier as study_classifier
    from enresnet.paper.quickstart import run_quickstart as run_quickstart
    from enresnet.paper.studies import study_multilevel as study_multilevel
    from enresnet.paper.studies import study_particles as study_particles

__all__ = load_on_first_use(
    __name__,
    {
        "classifier": "study_classifier",
        "quickstart": "run_quickstart",
        "studies": "study_multilevel study_particles",
    },
)
