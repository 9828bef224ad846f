"""The page: gradio components around :func:`attack_pair`, served to this machine alone.

Nothing is loaded from another host or sent to one: fonts are the system's, gradio's telemetry and
version check are off, and a Content-Security-Policy keeps the browser to this server.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import random
import signal
import socket
import threading
import webbrowser
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any

from torch import Tensor

from enresnet.common import checks
from enresnet.demo.experiment import (
    MOST_DRAWS,
    MOST_EOT,
    MOST_EPSILON,
    MOST_STEPS,
    DemoSettings,
    attack_pair,
    takes_steps,
)
from enresnet.demo.networks import Pair
from enresnet.demo.upload import read_upload
from enresnet.demo.view import error_html, preview_html, result_html, style

HOST = "127.0.0.1"
USUAL_PORT = 7860
LARGEST_FILE = "32mb"
TITLE = "EnResNet: a network and its Feynman-Kac ensemble under attack"
INTRODUCTION = """<div class="demo-intro"><h1>Can you fool it?</h1><p>An attack changes an image so
little that you hardly see it, and so cleverly that a network misreads it. The Feynman-Kac ensemble
adds Gaussian noise after every residual mapping and averages several such networks. Choose an
image and an attack, and compare it with the plain network.</p></div>"""
ATTACKS = [
    ("FGSM: one step along the gradient's sign", "fgsm"),
    ("IFGSM: many small steps", "ifgsm"),
    ("PGD: the same from a random start", "pgd"),
    ("APGD: with a step size that adapts", "apgd"),
    ("C&W: the smallest change that works, tanh space", "cw"),
    ("C&W in pixel space", "cw_pixel"),
    ("Square: random squares, no gradient", "square"),
    ("Random noise: not an attack, for comparison", "noise"),
]
AGAINST = [
    ("each network by itself (white box)", "each"),
    ("the plain network (blind for the ensemble)", "base"),
    ("the ensemble (blind for the plain network)", "ensemble"),
]
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    "connect-src 'self'; worker-src 'self' blob:; frame-ancestors 'none'"
)
BAD = (ValueError, TypeError, OSError, MemoryError, RuntimeError)  # a sentence, no traceback

Messages = MutableMapping[str, Any]
Send = Callable[[Messages], Awaitable[None]]


def serve(
    pairs: list[Pair],
    *,
    port: int | None = None,
    ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve the page to this machine until Ctrl-C or SIGTERM.

    Args:
        pairs: The networks to choose from.
        port: The port; by default 7860, or another one if that is taken.
        ready: Called with the address once the page can be opened.

    Raises:
        OSError: The port is taken or not allowed.
        ValueError: There is no pair.
    """
    if not pairs:
        raise ValueError("pairs must not be empty: no ensemble comes with a plain network")
    chosen = free_port(port)
    stop = threading.Event()
    page, look = build(pairs, stop)
    options = {
        "server_name": HOST,
        "server_port": chosen,
        "share": False,
        "inbrowser": False,
        "inline": False,
        "quiet": True,
        "prevent_thread_lock": True,
        "footer_links": [],
        "run_history": False,  # it would keep results in the browser
        "enable_monitoring": False,
        "ssr_mode": False,
        "pwa": False,
        "mcp_server": False,
        "max_file_size": LARGEST_FILE,
        "app_kwargs": {"middleware": _middleware()},
        **look,
    }
    known = inspect.signature(page.launch).parameters
    page.launch(**{name: value for name, value in options.items() if name in known})
    try:
        with _terminated_as_interrupted(), contextlib.suppress(KeyboardInterrupt):
            ready(f"http://{HOST}:{chosen}/")
            while not stop.wait(1.0):  # a wait without end could not be interrupted on Windows
                pass
    finally:
        stop.set()  # ends an attack that still runs
        # An open browser holds a connection for good; uvicorn would log what is cut off.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL + 1)
        page.server.force_exit = True
        page.close(verbose=False)


def free_port(port: int | None) -> int:
    """Return ``port`` if it can be listened on; of None or 0 the usual one, or any that is free."""
    wanted = [USUAL_PORT, 0] if port is None else [port]
    for number in wanted:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, number))
                return int(probe.getsockname()[1])
            except (OSError, OverflowError) as error:
                failure = error
    raise OSError(
        f"--port {port} cannot be used: {getattr(failure, 'strerror', None) or failure}; choose "
        "another, or leave it out for a free one"
    )


def open_in_browser(url: str) -> None:
    """Open the page in a browser, in the background: some browsers block until they end."""
    threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()


def build(pairs: list[Pair], stop: threading.Event) -> tuple[Any, dict[str, Any]]:
    """Return the page and how it looks, which gradio 6 wants to know only when it is served."""
    import gradio as gr

    pairs = sorted(pairs, key=lambda pair: not pair.has_test_images())  # those that show something
    by_name = {pair.name: pair for pair in pairs}
    first = pairs[0]

    def pair_of(name: str) -> Pair:
        return by_name[checks.choice("networks", name, by_name)]

    # Names become fonts of the system; gradio's own would be fetched where they are missing.
    fonts = {"font": ["system-ui", "sans-serif"], "font_mono": ["ui-monospace", "monospace"]}
    grey = {"": "*neutral_600", "_dark": "*neutral_400"}  # gradio's own is too pale to read
    tones = {
        f"{name}{mode}": tone
        for name in ("body_text_color_subdued", "block_info_text_color", "block_title_text_color")
        for mode, tone in grey.items()
    }
    look = {"css": style(), "theme": gr.themes.Default(**fonts).set(**tones)}
    late = "css" in inspect.signature(gr.Blocks.launch).parameters
    tracker = gr.Progress()

    def show(name: str, index: Any, upload: str | None, invert: bool) -> tuple[str, Any]:
        visible = gr.update(visible=False)
        try:
            visible = gr.update(visible=upload is not None and _grey(pair_of(name)))
            image, _, lines = _chosen(pair_of(name), index, upload, invert)
        except BAD as error:
            return error_html(_sentence(error)), visible
        return preview_html(image, lines), visible

    def switch(name: str) -> tuple[Any, Any]:
        return gr.update(**_slider(pair_of(name))), pair_of(name).epsilon

    def other(name: str) -> int:
        return random.randrange(_slider(pair_of(name))["maximum"] + 1)

    def steps_of(attack: str) -> Any:
        return gr.update(visible=takes_steps(attack))

    def attack(
        name: str,
        index: Any,
        upload: str | None,
        invert: bool,
        kind: Any,
        epsilon: Any,
        steps: Any,
        eot: Any,
        against: Any,
        draws: Any,
        seed: Any,
        progress: Any = tracker,
    ) -> str:
        def advance(share: float) -> None:
            if stop.is_set():
                raise RuntimeError("the demo was stopped")
            progress(min(share, 1.0), desc="attacking")

        try:
            settings = DemoSettings(
                attack=kind,
                epsilon=epsilon,
                steps=_whole(steps),
                eot=_whole(eot),
                against=against,
                draws=_whole(draws),
                seed=_whole(seed),
            )
            image, label, _ = _chosen(pair_of(name), index, upload, invert)
            return result_html(attack_pair(pair_of(name), image, label, settings, advance=advance))
        except BAD as error:
            return error_html(_sentence(error))

    with gr.Blocks(title=TITLE, analytics_enabled=False, **({} if late else look)) as page:
        gr.HTML(INTRODUCTION)
        with gr.Row():
            with gr.Column(scale=2, min_width=300):
                networks = gr.Dropdown(
                    list(by_name), value=first.name, label="Networks", visible=len(pairs) > 1
                )
                preview = gr.HTML(show(first.name, 0, None, False)[0], elem_id="preview")
                index = gr.Slider(label="Test image", step=1, value=0, **_slider(first))
                another = gr.Button("Another image", size="sm")
                with gr.Accordion("Your own image", open=False, elem_id="own"):
                    upload = gr.File(label="An image file", type="filepath", height=120)
                    invert = gr.Checkbox(
                        label="Exchange light and dark (the digits are light on dark)",
                        visible=False,
                    )
                kind = gr.Dropdown(ATTACKS, value="ifgsm", label="Attack")
                epsilon = gr.Slider(
                    0,
                    MOST_EPSILON,
                    value=first.epsilon,
                    step=1,
                    elem_id="epsilon",
                    label="Epsilon: largest change of a pixel, in grey levels of 255",
                    info="C&W has no such bound: its step size grows with it.",
                )
                steps = gr.Slider(1, MOST_STEPS, value=20, step=1, label="Steps")
                eot = gr.Slider(
                    1,
                    MOST_EOT,
                    value=5,
                    step=1,
                    label="EOT: draws of the noise that a gradient averages",
                )
                against = gr.Dropdown(AGAINST, value="each", label="The attack sees")
                with gr.Accordion("More", open=False):
                    draws = gr.Slider(
                        1, MOST_DRAWS, value=100, step=1, label="Predictions of the ensemble"
                    )
                    seed = gr.Number(0, label="Seed of the noise", precision=0, minimum=0)
            with gr.Column(scale=5, min_width=320):
                button = gr.Button("Attack", variant="primary", elem_id="attack")
                result = gr.HTML(_first_result(first), elem_id="result")
        for component in (networks, index, kind, epsilon, steps, eot, against, draws, seed):
            # Checked by us: gradio answers a wrong value with a traceback, we with a sentence.
            component.preprocess = _as_sent
        chosen = [networks, index, upload, invert]
        settings = [kind, epsilon, steps, eot, against, draws, seed]
        for event in (index.change, upload.change, invert.change, networks.change):
            event(show, chosen, [preview, invert], show_progress="hidden")
        networks.change(switch, networks, [index, epsilon], show_progress="hidden")
        another.click(other, networks, index, show_progress="hidden")
        kind.change(steps_of, kind, steps, show_progress="hidden")
        # One at a time: requests share the networks and their noise.
        button.click(attack, [*chosen, *settings], result, concurrency_limit=1)
    return page, look if late else {}


def _first_result(pair: Pair) -> str:
    """Return what is shown before anything is asked; it also warms the networks up."""
    try:
        image, label, _ = _chosen(pair, 0, None, False)
    except BAD as error:
        return error_html(_sentence(error))
    return result_html(attack_pair(pair, image, label, DemoSettings(epsilon=pair.epsilon)))


def _chosen(
    pair: Pair, index: Any, upload: str | None, invert: bool
) -> tuple[Tensor, int | None, list[str]]:
    """Return the image, its class if it is known, and lines on it."""
    if upload is not None:
        image, words = read_upload(upload, pair.image_shape, invert=invert and _grey(pair))
        return image, None, ["Your image.", words, "Remove the file to see test images again."]
    images, number = pair.test_images(), _whole(index)
    if not isinstance(number, int) or not 0 <= number < len(images):
        raise ValueError(f"test image must be 0 to {len(images) - 1}, found {number}")
    batch, labels = images.batch(slice(number, number + 1))
    label = int(labels)
    name = f"Test image {number} of {pair.ensemble.data}"
    return batch[0], label, [name, f"True class: {pair.classes[label]}"]


def _grey(pair: Pair) -> bool:
    """Return whether images have one channel: for those, light and dark can be exchanged."""
    return pair.image_shape[0] == 1


def _slider(pair: Pair) -> dict[str, Any]:
    """Return the range of the slider that chooses a test image."""
    try:
        count = len(pair.test_images())
    except BAD:  # which is said where the image would be
        return {"minimum": 0, "maximum": 1, "interactive": False}
    return {"minimum": 0, "maximum": count - 1, "interactive": True}


def _as_sent(value: Any) -> Any:
    return value


def _whole(value: Any) -> Any:
    """Return a whole number as int: a browser may send 20.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _sentence(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    text = text[0].upper() + text[1:]
    return text if text.endswith((".", "?")) else f"{text}."


def _middleware() -> list[Any]:
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    # A page elsewhere whose name resolves to this machine would be as good as one of ours.
    hosts = [HOST, "localhost"]
    return [Middleware(TrustedHostMiddleware, allowed_hosts=hosts), Middleware(_WithPolicy)]


class _WithPolicy:
    """Adds the policy to every answer, as ASGI middleware that leaves streams alone."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Messages, receive: Any, send: Send) -> None:
        async def sending(message: Messages) -> None:
            if message["type"] == "http.response.start":
                header = (b"content-security-policy", POLICY.encode())
                message = {**message, "headers": [*message.get("headers", ()), header]}
            await send(message)

        await self._app(scope, receive, sending)


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM end the server as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
