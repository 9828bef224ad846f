"""What holds for all tests."""

import os

# Networks as small as those of the tests lose by more threads, and the tests themselves run side by
# side: one thread for each, and for every process that a test starts.
os.environ["OMP_NUM_THREADS"] = "1"

import torch
from hypothesis import settings

torch.set_num_threads(1)

# Properties are tried on the same examples every time, so that a red test is red for everyone;
# HYPOTHESIS_PROFILE=explore looks for new ones.
settings.register_profile("repeatable", derandomize=True)
settings.register_profile("explore", derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
