"""``enresnet demo``."""

from __future__ import annotations

import os
import sys
import tempfile

from enresnet.cli.output import say
from enresnet.common.requirements import needs


def command(
    *,
    networks: tuple[str, str] | None = None,
    port: int | None = None,
    no_browser: bool = False,
    trust_code: bool = False,
) -> None:
    """Serve a page to this machine: choose an image and an attack, see what two networks say.

    A plain network and its Feynman-Kac ensemble are shown side by side, before and after the
    attack. Ctrl-C ends it. Only this machine can open the page, and it works offline. Images are
    those of the networks' data: digits for the networks in the package, CIFAR-10 for runs on it.

    Args:
        networks: The folders of two runs on the same images, of a plain network and of an ensemble,
            shown before the networks that come with the package.
        port: The page's port; by default 7860, or another one if that is taken.
        no_browser: Do not open the page in a browser. Without a display it is never opened.
        trust_code: Import and run the code that a run names as its network, module.path:name.
    """
    needs("enresnet demo", "gradio", "demo")
    with tempfile.TemporaryDirectory(prefix="enresnet-demo-") as folder:
        # gradio reads these when it is imported. Uploads go where they end with the command.
        os.environ |= {
            "GRADIO_ANALYTICS_ENABLED": "False",
            "GRADIO_TEMP_DIR": folder,
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_OFFLINE": "1",
            "OTEL_SDK_DISABLED": "true",  # the server's own telemetry
        }
        # It asks its own server whether it is up, which no proxy knows.
        local = [os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or "", "127.0.0.1"]
        os.environ["NO_PROXY"] = os.environ["no_proxy"] = ",".join(filter(None, local))

        from enresnet.demo import list_pairs, pair_of_runs
        from enresnet.demo.page import open_in_browser, serve

        def ready(url: str) -> None:
            say(f"The demo is at {url} for this machine only; Ctrl-C ends it")
            sys.stdout.flush()
            if not no_browser and has_display():
                open_in_browser(url)

        named = [] if networks is None else [pair_of_runs(*networks, trust_code=trust_code)]
        serve([*named, *list_pairs()], port=port, ready=ready)
    say("The demo has ended")


def has_display() -> bool:
    """Return whether a browser could show itself to the user."""
    if os.environ.get("SSH_CONNECTION"):
        return False
    if sys.platform in ("win32", "darwin"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
