"""What classifies: noise-injected residual networks and their ensembles."""

from typing import TYPE_CHECKING

from enresnet.common.lazy import load_on_first_use

if TYPE_CHECKING:
    from enresnet.models.conversion.convert import feynman_kac as feynman_kac
    from enresnet.models.conversion.residuals import Residual as Residual
    from enresnet.models.conversion.residuals import Residuals as Residuals
    from enresnet.models.conversion.residuals import find_residuals as find_residuals
    from enresnet.models.ensemble import Ensemble as Ensemble
    from enresnet.models.ensemble import set_recompute as set_recompute
    from enresnet.models.external import ExternalNetwork as ExternalNetwork
    from enresnet.models.names import canonical_name as canonical_name
    from enresnet.models.names import count_parameters as count_parameters
    from enresnet.models.names import is_noisy as is_noisy
    from enresnet.models.names import list_models as list_models
    from enresnet.models.names import names_code as names_code
    from enresnet.models.names import paper_name as paper_name
    from enresnet.models.noise import NoiseInjection as NoiseInjection
    from enresnet.models.noise import inject_noise as inject_noise
    from enresnet.models.noise import seed_noise as seed_noise
    from enresnet.models.noise import set_noise as set_noise
    from enresnet.models.noise import using_noise as using_noise
    from enresnet.models.noise import without_noise as without_noise
    from enresnet.models.normalized import Normalized as Normalized
    from enresnet.models.pretrained import ModelCard as ModelCard
    from enresnet.models.pretrained import find_pretrained as find_pretrained
    from enresnet.models.pretrained import list_pretrained as list_pretrained
    from enresnet.models.registry import create_model as create_model
    from enresnet.models.registry import same_architecture as same_architecture
    from enresnet.models.resnet import ResNet as ResNet
    from enresnet.models.storage import load_model as load_model
    from enresnet.models.storage import save_model as save_model

__all__ = load_on_first_use(
    __name__,
    {
        "conversion.convert": "feynman_kac",
        "conversion.residuals": "Residual Residuals find_residuals",
        "ensemble": "Ensemble set_recompute",
        "external": "ExternalNetwork",
        "names": "canonical_name count_parameters is_noisy list_models names_code paper_name",
        "noise": "NoiseInjection inject_noise seed_noise set_noise using_noise without_noise",
        "normalized": "Normalized",
        "pretrained": "ModelCard find_pretrained list_pretrained",
        "resnet": "ResNet",
        "storage": "load_model save_model",
        "registry": "create_model same_architecture",
    },
)
