"""From measurements to tables, pictures and pages."""

from typing import TYPE_CHECKING

from enresnet.common.lazy import load_on_first_use

if TYPE_CHECKING:
    from enresnet.report.curve import curve_figure as curve_figure
    from enresnet.report.figure4_view import Figure4View as Figure4View
    from enresnet.report.figures import accuracy_bars as accuracy_bars
    from enresnet.report.figures import convergence_figure as convergence_figure
    from enresnet.report.figures import diagnosis_figure as diagnosis_figure
    from enresnet.report.figures import transfer_heat_map as transfer_heat_map
    from enresnet.report.found_runs import FoundRuns as FoundRuns
    from enresnet.report.found_runs import find_runs as find_runs
    from enresnet.report.page import write_report as write_report
    from enresnet.report.quickstart import NETWORKS as NETWORKS
    from enresnet.report.quickstart import Plan as Plan
    from enresnet.report.quickstart import Quickstart as Quickstart
    from enresnet.report.quickstart_page import render_quickstart as render_quickstart

__all__ = load_on_first_use(
    __name__,
    {
        "curve": "curve_figure",
        "figure4_view": "Figure4View",
        "figures": "accuracy_bars convergence_figure diagnosis_figure transfer_heat_map",
        "found_runs": "FoundRuns find_runs",
        "page": "write_report",
        "quickstart": "NETWORKS Plan Quickstart",
        "quickstart_page": "render_quickstart",
    },
)
