"""Any network with residual connections becomes a Feynman-Kac ensemble."""
