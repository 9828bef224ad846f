"""From measurements to tables, pictures and pages."""

from typing import TYPE_CHECKING

from enresnet.lazy import load_on_first_use

if TYPE_CHECKING:
    from enresnet.report.html import quickstart_page as quickstart_page
    from enresnet.report.quickstart import Quickstart as Quickstart
    from enresnet.report.quickstart import run_quickstart as run_quickstart

__all__ = load_on_first_use(
    __name__,
    {
        "html": "quickstart_page",
        "quickstart": "Quickstart run_quickstart",
    },
)
