"""The theory made runnable: transport, convection-diffusion, Feynman-Kac, multi-level Monte Carlo.

Maths only: the studies that reproduce the paper are in :mod:`enresnet.paper`.
"""

from typing import TYPE_CHECKING

from enresnet.common.lazy import load_on_first_use

if TYPE_CHECKING:
    from enresnet.pde.grid import Grid as Grid
    from enresnet.pde.mlmc import Sampler as Sampler
    from enresnet.pde.mlmc import multilevel as multilevel
    from enresnet.pde.particles import feynman_kac as feynman_kac
    from enresnet.pde.semi_lagrangian import solve_rough as solve_rough
    from enresnet.pde.spectral import largest_stable_step as largest_stable_step
    from enresnet.pde.spectral import solve_backward as solve_backward
    from enresnet.pde.spectral import solve_forward as solve_forward

__all__ = load_on_first_use(
    __name__,
    {
        "grid": "Grid",
        "mlmc": "Sampler multilevel",
        "particles": "feynman_kac",
        "semi_lagrangian": "solve_rough",
        "spectral": "largest_stable_step solve_backward solve_forward",
    },
)
