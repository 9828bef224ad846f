"""What holds for all tests."""

import importlib.util
import os
import shutil
from pathlib import Path

# Networks as small as those of the tests lose by more threads, and the tests themselves run side by
# side: one thread for each, and for every process that a test starts.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)

# Properties are tried on the same examples every time, so that a red test is red for everyone;
# HYPOTHESIS_PROFILE=explore looks for new ones.
settings.register_profile("repeatable", derandomize=True)
settings.register_profile("explore", derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Return a folder with a copy of the runs on digits that are kept here."""
    monkeypatch.setenv("ENRESNET_DATA", str(tmp_path / "data"))  # images are those of digits
    kept = Path(__file__).parent.parent / "results" / "digits"
    return Path(shutil.copytree(kept, tmp_path / "digits"))


@pytest.fixture
def browser(tmp_path):
    """Yield headless Chromium."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if importlib.util.find_spec("selenium") is None or chromium is None or driver is None:
        pytest.skip("selenium, chromium or chromedriver is not installed")
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    options = ChromeOptions()
    options.binary_location = chromium
    words = "headless no-sandbox disable-gpu disable-quic no-first-run disable-sync"
    words += " disable-background-networking disable-component-update window-size=1280,1000"
    for word in [*words.split(), f"user-data-dir={tmp_path / 'profile'}"]:
        options.add_argument(f"--{word}")
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    found = Chrome(options=options, service=ChromeService(driver))
    yield found
    found.quit()


@pytest.fixture
def same_weights():
    """Networks that a test builds have the same weights every time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield
