"""From a recipe to a trained network: the loop, its objectives, its folder."""

from typing import TYPE_CHECKING

from enresnet.lazy import load_on_first_use

if TYPE_CHECKING:
    from enresnet.training.engine import Engine as Engine
    from enresnet.training.integrate import integrate as integrate
    from enresnet.training.recipe import Recipe as Recipe
    from enresnet.training.recipe import list_recipes as list_recipes
    from enresnet.training.recipe import load_recipe as load_recipe
    from enresnet.training.run import Run as Run
    from enresnet.training.run import RunConfig as RunConfig
    from enresnet.training.standing import Epoch as Epoch
    from enresnet.training.standing import Step as Step
    from enresnet.training.train import train as train
    from enresnet.training.trainer import Trainer as Trainer
    from enresnet.training.watcher import Watcher as Watcher

__all__ = load_on_first_use(
    __name__,
    {
        "engine": "Engine",
        "integrate": "integrate",
        "recipe": "Recipe list_recipes load_recipe",
        "run": "Run RunConfig",
        "standing": "Epoch Step",
        "train": "train",
        "trainer": "Trainer",
        "watcher": "Watcher",
    },
)
