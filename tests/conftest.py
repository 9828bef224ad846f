"""What several test files share."""

import os

import pytest
import torch
from hypothesis import settings

# Properties are tried on the same examples every time, so that a red test is red for everyone;
# HYPOTHESIS_PROFILE=explore looks for new ones.
settings.register_profile("repeatable", derandomize=True)
settings.register_profile("explore", derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.fixture
def one_thread():
    """Run a test on one thread: networks as small as those of the tests lose by more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
