"""The paper reproduced: its tables and claims as data, its studies, and the quickstart."""

from typing import TYPE_CHECKING

from enresnet.common.lazy import load_on_first_use

if TYPE_CHECKING:
    from enresnet.paper.claims import Claim as Claim
    from enresnet.paper.claims import load_claims as load_claims
    from enresnet.paper.classifier import study_classifier as study_classifier
    from enresnet.paper.cost import estimate_cost as estimate_cost
    from enresnet.paper.figure4 import study_figure4 as study_figure4
    from enresnet.paper.found import contents_of as contents_of
    from enresnet.paper.plan import make_plan as make_plan
    from enresnet.paper.published import Paper as Paper
    from enresnet.paper.published import load_paper as load_paper
    from enresnet.paper.quickstart import run_quickstart as run_quickstart
    from enresnet.paper.reproduction import Reproduction as Reproduction
    from enresnet.paper.setup import Setup as Setup
    from enresnet.paper.studies import study_multilevel as study_multilevel
    from enresnet.paper.studies import study_particles as study_particles
    from enresnet.paper.verify import verify_solvers as verify_solvers

__all__ = load_on_first_use(
    __name__,
    {
        "claims": "Claim load_claims",
        "classifier": "study_classifier",
        "cost": "estimate_cost",
        "figure4": "study_figure4",
        "found": "contents_of",
        "plan": "make_plan",
        "published": "Paper load_paper",
        "quickstart": "run_quickstart",
        "reproduction": "Reproduction",
        "setup": "Setup",
        "studies": "study_multilevel study_particles",
        "verify": "verify_solvers",
    },
)
