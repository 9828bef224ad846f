"""EnResNet: Feynman-Kac ensembles of residual networks, and attacks that measure them honestly.

The names below load on first use, so that ``import enresnet`` does not wait for torch.
"""

from importlib.metadata import version
from typing import TYPE_CHECKING

from enresnet.common.lazy import load_on_first_use

if TYPE_CHECKING:
    from enresnet.attacks import create_attack as create_attack
    from enresnet.attacks import list_attacks as list_attacks
    from enresnet.data import load_data as load_data
    from enresnet.evaluation import Evaluation as Evaluation
    from enresnet.evaluation import diagnose as diagnose
    from enresnet.evaluation import evaluate as evaluate
    from enresnet.evaluation import load_results as load_results
    from enresnet.evaluation import transfer as transfer
    from enresnet.evaluation import transfer_matrix as transfer_matrix
    from enresnet.models import Ensemble as Ensemble
    from enresnet.models import NoiseInjection as NoiseInjection
    from enresnet.models import create_model as create_model
    from enresnet.models import feynman_kac as feynman_kac
    from enresnet.models import inject_noise as inject_noise
    from enresnet.models import list_models as list_models
    from enresnet.models import list_pretrained as list_pretrained
    from enresnet.models import load_model as load_model
    from enresnet.models import save_model as save_model
    from enresnet.models import seed_noise as seed_noise
    from enresnet.models import set_noise as set_noise
    from enresnet.models import using_noise as using_noise
    from enresnet.models import without_noise as without_noise
    from enresnet.models.frozen import frozen as frozen
    from enresnet.training import Recipe as Recipe
    from enresnet.training import Run as Run
    from enresnet.training import RunConfig as RunConfig
    from enresnet.training import compare as compare
    from enresnet.training import integrate as integrate
    from enresnet.training import list_recipes as list_recipes
    from enresnet.training import list_runs as list_runs
    from enresnet.training import load_recipe as load_recipe
    from enresnet.training import resume as resume
    from enresnet.training import train as train

__all__ = load_on_first_use(
    __name__,
    {
        "attacks": "create_attack list_attacks",
        "data": "load_data",
        "evaluation": "Evaluation diagnose evaluate load_results transfer transfer_matrix",
        "models": "Ensemble NoiseInjection create_model feynman_kac inject_noise list_models "
        "list_pretrained load_model save_model seed_noise set_noise using_noise without_noise",
        "models.frozen": "frozen",
        "training": "Recipe Run RunConfig compare integrate list_recipes list_runs load_recipe "
        "resume train",
    },
)

__version__ = version("enresnet")
