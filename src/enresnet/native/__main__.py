"""Compile the loops ahead of time, and say whether they could be."""

from enresnet.native import library

print("native loops:", "compiled" if library() else "none; torch's own operations serve instead")
