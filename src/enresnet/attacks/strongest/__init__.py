"""The strongest attack: several searches for each image, and the worst point of them all."""

from enresnet.attacks.strongest.search import Strongest as Strongest

__all__ = ["Strongest"]
