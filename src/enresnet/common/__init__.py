"""What every room stands on: checks, files, progress, randomness, tables; nothing of ours below."""

from enresnet.common import lazy

__all__ = lazy.load_on_first_use(__name__, {})
