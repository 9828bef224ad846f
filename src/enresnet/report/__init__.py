"""From measurements to tables, pictures and pages."""

from enresnet.report.html import quickstart_page
from enresnet.report.quickstart import Quickstart, run_quickstart

__all__ = ["Quickstart", "quickstart_page", "run_quickstart"]
