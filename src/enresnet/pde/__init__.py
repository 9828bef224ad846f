"""The theory made runnable: transport, convection-diffusion, Feynman-Kac, multi-level Monte Carlo.

Only what needs no picture is imported here; each study has a module of its own.
"""

from enresnet.pde.grid import Grid
from enresnet.pde.multilevel import Sampler, multilevel
from enresnet.pde.particles import feynman_kac
from enresnet.pde.semi_lagrangian import solve_rough
from enresnet.pde.spectral import largest_stable_step, solve_backward, solve_forward

__all__ = [
    "Grid",
    "Sampler",
    "feynman_kac",
    "largest_stable_step",
    "multilevel",
    "solve_backward",
    "solve_forward",
    "solve_rough",
]
