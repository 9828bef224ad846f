"""What several test files share."""

import pytest
import torch


@pytest.fixture
def one_thread():
    """Run a test on one thread: networks as small as those of the tests lose by more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
