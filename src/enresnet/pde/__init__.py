"""The theory made runnable: transport, convection-diffusion, Feynman-Kac, multi-level Monte Carlo."""
