"""From a recipe to a trained network: the loop, its objectives, its folder."""

from typing import TYPE_CHECKING

from enresnet.common.lazy import load_on_first_use

if TYPE_CHECKING:
    from enresnet.training.callbacks import Callback as Callback
    from enresnet.training.compare_runs import compare as compare
    from enresnet.training.engine import Engine as Engine
    from enresnet.training.events import Epoch as Epoch
    from enresnet.training.events import Step as Step
    from enresnet.training.integration import integrate as integrate
    from enresnet.training.recipe import Recipe as Recipe
    from enresnet.training.recipe import list_recipes as list_recipes
    from enresnet.training.recipe import load_recipe as load_recipe
    from enresnet.training.run import Run as Run
    from enresnet.training.run_config import RunConfig as RunConfig
    from enresnet.training.run_list import RunSummary as RunSummary
    from enresnet.training.run_list import list_runs as list_runs
    from enresnet.training.session import resume as resume
    from enresnet.training.session import train as train
    from enresnet.training.trainer import Trainer as Trainer

__all__ = load_on_first_use(
    __name__,
    {
        "compare_runs": "compare",
        "engine": "Engine",
        "integration": "integrate",
        "recipe": "Recipe list_recipes load_recipe",
        "run": "Run",
        "run_config": "RunConfig",
        "run_list": "RunSummary list_runs",
        "events": "Epoch Step",
        "session": "resume train",
        "trainer": "Trainer",
        "callbacks": "Callback",
    },
)
