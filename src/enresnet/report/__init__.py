"""From measurements to tables, pictures and pages."""

from typing import TYPE_CHECKING

from enresnet.common.lazy import load_on_first_use

if TYPE_CHECKING:
    from enresnet.report.curve import curve_figure as curve_figure
    from enresnet.report.figures import accuracy_bars as accuracy_bars
    from enresnet.report.figures import convergence_figure as convergence_figure
    from enresnet.report.figures import diagnosis_figure as diagnosis_figure
    from enresnet.report.figures import transfer_heat_map as transfer_heat_map
    from enresnet.report.html import quickstart_page as quickstart_page
    from enresnet.report.quickstart import NETWORKS as NETWORKS
    from enresnet.report.quickstart import Plan as Plan
    from enresnet.report.quickstart import Quickstart as Quickstart

__all__ = load_on_first_use(
    __name__,
    {
        "curve": "curve_figure",
        "figures": "accuracy_bars convergence_figure diagnosis_figure transfer_heat_map",
        "html": "quickstart_page",
        "quickstart": "NETWORKS Plan Quickstart",
    },
)
