"""Where trained models go: other runtimes, and the Hub."""

from typing import TYPE_CHECKING

from enresnet.common.lazy import load_on_first_use

if TYPE_CHECKING:
    from enresnet.publish.export import Exported as Exported
    from enresnet.publish.export import export_model as export_model
    from enresnet.publish.export import open_onnx as open_onnx
    from enresnet.publish.hub import HubModel as HubModel

__all__ = load_on_first_use(
    __name__, {"export": "Exported export_model open_onnx", "hub": "HubModel"}
)
