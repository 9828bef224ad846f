"""The fast path of attacks: a network frozen, its BatchNorm folded away, its CPU code fused."""
