"""The loops in C: the law of their draws, and that they compute what torch's operations do."""

import shutil
import subprocess
import sys

import pytest
import torch

from enresnet import native
from enresnet.models import (
    create_model,
    inject_noise,
    save_model,
    using_noise,
)
from enresnet.models import noise as noise_module
from enresnet.models.frozen.fused_cpu import Seam
from enresnet.models.noise import NoiseInjection, NoiseStream
from problems import seeded

needs_loops = pytest.mark.skipif(native.library() is None, reason="needs a C compiler")


def draw(count, key=0, dtype=torch.float32):
    draws = torch.empty(count, dtype=dtype)
    native.call("normal", draws, draws, count, key)
    return draws


COUNT = 2**22


@pytest.fixture(scope="module")
def draws():
    return draw(COUNT, key=1).double()


@needs_loops
class TestLaw:
    """Over 4 million draws; a bound of five standard errors is missed once in two million times."""

    def test_moments(self, draws):
        error = COUNT**-0.5
        assert abs(draws.mean()) < 5 * error
        assert abs(draws.square().mean() - 1) < 5 * 2**0.5 * error
        assert abs(draws.pow(3).mean()) < 5 * 15**0.5 * error
        assert abs(draws.pow(4).mean() - 3) < 5 * 96**0.5 * error

    @pytest.mark.parametrize("beyond", [0.5, 1.0, 2.0, 3.0, 4.0, 4.5])
    def test_tails(self, draws, beyond):
        share = torch.special.erfc(torch.tensor(beyond / 2**0.5, dtype=torch.float64)).item()
        error = (share * (1 - share) / COUNT) ** 0.5
        for tail in (draws > beyond, draws < -beyond):
            assert abs(tail.double().mean() - share / 2) < 5 * error

    def test_the_whole_distribution(self, draws):
        """Kolmogorov and Smirnov's distance to the normal law."""
        law = torch.special.ndtr(draws.sort().values)
        ranks = torch.arange(1, COUNT + 1, dtype=torch.float64) / COUNT
        assert (law - ranks).abs().max() < 2.3 * COUNT**-0.5

    def test_no_correlation_at_any_distance(self, draws):
        spectrum = torch.fft.rfft(draws, n=2 * COUNT)
        correlation = torch.fft.irfft(spectrum.abs() ** 2)[1 : COUNT // 2] / COUNT
        # The largest of two million: six and a half standard errors.
        assert correlation.abs().max() < 6.5 * COUNT**-0.5
        squares = torch.fft.rfft(draws.square() - 1, n=2 * COUNT)
        correlation = torch.fft.irfft(squares.abs() ** 2)[1 : COUNT // 2] / COUNT
        assert correlation.abs().max() < 2 * 7 * COUNT**-0.5

    def test_pairs_fill_the_plane(self, draws):
        """The two draws of one Box-Muller pair, sixteen apart: independent, angles uniform."""
        pairs = draws.view(-1, 2, 16)
        angles = torch.atan2(pairs[:, 0], pairs[:, 1]).flatten()
        counts = torch.histc(angles, bins=64, min=-torch.pi, max=torch.pi)
        expected = len(angles) / 64
        assert (counts - expected).abs().max() < 5.5 * expected**0.5
        assert abs((pairs[:, 0].square() * pairs[:, 1].square()).mean() - 1) < 0.02

    def test_keys_and_places_are_independent(self):
        for key in (0, 1, 2**40, 2**63 - 1):
            one, two = draw(2**18, key=key), draw(2**18, key=key + 1)
            assert abs((one * two).mean()) < 5 * 2**-9
            chunks = one.view(-1, 4096)
            assert abs((chunks[1:] * chunks[:-1]).mean()) < 5 * 2**-9

    def test_a_key_fixes_the_draws_whatever_the_threads(self):
        before = torch.get_num_threads()
        try:
            torch.set_num_threads(1)
            one = draw(100_000, key=5)
            torch.set_num_threads(2)
            assert torch.equal(one, draw(100_000, key=5))
        finally:
            torch.set_num_threads(before)

    def test_bfloat16_is_float32_rounded(self):
        """Each 32 in another order: bfloat16 comes as even and odd elements."""
        wide = draw(4992, key=3).bfloat16().view(-1, 2, 16)
        assert torch.equal(draw(4992, key=3, dtype=torch.bfloat16), wide.transpose(1, 2).flatten())


MULTIPLIERS = torch.tensor([6364136223846793005, 1442695040888963407, 3935559000370003845, 1])


def repeated(draws):
    """Return how many runs of four values occur more than once."""
    codes = draws.view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    windows = torch.stack([codes[i : len(codes) - 3 + i] for i in range(4)])
    hashes = (windows * MULTIPLIERS[:, None]).sum(dim=0)
    return len(hashes) - len(hashes.unique())


@needs_loops
def test_no_run_of_values_comes_again():
    """Over calls as a training makes them: 4 million draws, chance would repeat 4e-7 of a run."""
    stream = NoiseStream(seeded())
    draws = [stream.normal_like(torch.empty(64, 16384)).flatten() for _ in range(4)]
    assert repeated(torch.cat(draws)) == 0
    assert repeated(torch.cat([draws[0], draws[0][1000:3000]])) > 1900  # it would be seen


def injected(stream, like):
    """Return noise as a block adds it: one element gives each example its deviation, 0 is noise."""
    x = torch.zeros_like(like)
    x[:, -1] = 128
    return inject_noise(x, generator=stream)[:, :-1]


@needs_loops
@pytest.mark.slow
@pytest.mark.parametrize("drawn", [NoiseStream.normal_like, injected])
def test_no_run_of_values_comes_again_over_a_hundred_million(drawn):
    """At any distance: of all runs of four, those whose hash ends in one of eight ways are kept."""
    stream, seen = NoiseStream(seeded()), []
    for number in range(49):
        draws = drawn(stream, torch.empty(128, 16384)).flatten()
        if number == 0:
            first = draws
        seen.append(some_hashes(draws))
    codes = torch.cat(seen)
    assert 49 * len(draws) > 1e8
    assert len(codes) > 1e7
    assert len(codes.unique()) == len(codes)
    for offset in (1, 2, 3, 4):  # a pool used again would be seen
        again = torch.cat([some_hashes(first), some_hashes(first[offset : offset + 2**19])])
        assert len(again) - len(again.unique()) > 2**19 / 8 * 0.9


def some_hashes(draws):
    """Return the hashes of an eighth of all runs of four values, wherever they start."""
    codes = draws.view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    windows = torch.stack([codes[i : len(codes) - 3 + i] for i in range(4)])
    hashes = (windows * MULTIPLIERS[:, None]).sum(dim=0)
    return hashes[(hashes >> 40) % 8 == 0]


@needs_loops
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 5), (2, 16, 8, 8), (4, 3, 37), (2, 70_000), (1, 1)])
def test_injection_is_the_formula(shape, dtype):
    """With the draws that were added, result and gradient are those of torch's operations."""
    x = (3 + torch.randn(shape, generator=seeded())).to(dtype).requires_grad_()
    y = inject_noise(x, 0.5, generator=seeded(1))
    g = torch.randn(shape, generator=seeded(2)).to(dtype)
    (found,) = torch.autograd.grad(y, x, g)
    wide = x.detach().double().requires_grad_()
    std = noise_module.standard_deviation(wide, tuple(range(1, len(shape))))
    draws = torch.where(std > 0, (y.detach().double() - wide.detach()) / (0.5 * std.detach()), 0.0)
    (expected,) = torch.autograd.grad(wide + 0.5 * std * draws, wide, g.double())
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)
    if x[0].numel() > 1000:
        assert abs(draws.std() - 1) < 0.1


@needs_loops
def test_memory_formats_and_slices():
    x = torch.randn(4, 16, 8, 8, generator=seeded())
    last = x.contiguous(memory_format=torch.channels_last)
    assert inject_noise(last, generator=seeded()).is_contiguous(memory_format=torch.channels_last)
    sliced = x[:, ::2]
    torch.testing.assert_close(
        inject_noise(sliced, generator=seeded()),
        inject_noise(sliced.contiguous(), generator=seeded()),
    )
    leaf = x.clone().requires_grad_()
    inject_noise(leaf, generator=seeded()).mean().backward()  # an expanded gradient
    assert leaf.grad.isfinite().all()


def test_nan_is_not_swallowed():
    network = create_model("en1_resnet8", generator=seeded()).eval().requires_grad_(False)
    images = torch.rand(2, 3, 16, 16)
    images[0, 0, 0, 0] = torch.nan
    logits = network(images)
    assert logits[0].isnan().all()
    assert logits[1].isfinite().all()


def test_without_loops_everything_works(tmp_path):
    """In a process of its own: no compiler, no loops, the same answers without noise."""
    path = tmp_path / "m.safetensors"
    model = create_model("en2_resnet8", generator=seeded())
    save_model(model, path)
    code = f"""
import torch
from enresnet import native
from enresnet.attacks import IFGSM
from enresnet.models import load_model, without_noise
assert native.library() is None
model = load_model({str(path)!r})
images = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
attacked = IFGSM(steps=2, eot=2)(model, images, torch.arange(4))
assert 0 < (attacked - images).abs().max() <= 8 / 255 + 1e-6
with without_noise(model):
    print(model(images).flatten().tolist())
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"ENRESNET_NATIVE": "0", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    found = torch.tensor(eval(done.stdout)).view(4, 10)
    images = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with using_noise(model, 0.0), torch.no_grad():
        torch.testing.assert_close(found, model.eval()(images), rtol=1e-3, atol=1e-4)


@needs_loops
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 16, 8, 8), (2, 48, 7, 9), (2, 32, 2, 1), (1, 16, 16, 4)])
@pytest.mark.parametrize("step", [1, 2, 4])
def test_pixels_taken_and_given_back(shape, dtype, step):
    rows, channels, height, width = shape
    size = (rows, height, width, channels, step)
    last = {"memory_format": torch.channels_last}
    every, few = (torch.randn(shape, generator=seeded(n)).to(dtype) for n in (0, 1))
    every, few = every.contiguous(**last), few[:, :, ::step, ::step].contiguous(**last)
    taken = torch.full_like(few, torch.nan)
    native.call("take", every, every, taken, *size)
    assert torch.equal(taken, every[:, :, ::step, ::step])
    few[0, 0, 0, 0], few[0, 1, 0, 0] = torch.nan, torch.inf
    expected = every.clone()
    expected[:, :, ::step, ::step] += few
    native.call("give", few, few, every, *size)
    torch.testing.assert_close(every, expected, rtol=0, atol=0, equal_nan=True)


def channels_last(shape, seed, dtype):
    x = torch.randn(shape, generator=seeded(seed)).to(dtype)
    return x.contiguous(memory_format=torch.channels_last)


def rows_of(x):
    """Return each example's numbers in the order in which they lie."""
    return x.float().permute(0, 2, 3, 1).flatten(1)


def assert_independent(draws):
    """Raise unless the draws, a row an example, are normal and no two pieces of them alike."""
    count = draws.numel()
    assert abs(draws.mean()) < 5 / count**0.5
    assert abs(draws.var() - 1) < 5 * (2 / count) ** 0.5
    assert abs((draws**4).mean() - 3) < 5 * (96 / count) ** 0.5
    assert repeated(draws.flatten()) == 0
    for size in (draws.shape[1], 4096, 1024):  # examples; the pieces that the generator starts anew
        pieces = draws.flatten()[: count // size * size].view(-1, size)
        alike = pieces @ pieces.t() / size
        alike.fill_diagonal_(0)
        assert alike.abs().max() < 6.5 / size**0.5


@needs_loops
@pytest.mark.parametrize("channels", [16, 48, 64])
class TestWhatNetworksAdd:
    """The loops that networks run: ``inject`` where they train, seams where they are attacked."""

    noise = 0.5

    def shape(self, channels):
        return 48, channels, 24, 24  # more than two chunks an example, and no whole number of them

    def test_injected(self, channels):
        x = channels_last(self.shape(channels), 0, torch.float32).sign()
        stream = NoiseStream(seeded(1))
        first, second = (inject_noise(x, self.noise, generator=stream) - x for _ in range(2))
        std = x.flatten(1).std(dim=1, correction=0).view(-1, 1, 1, 1)
        assert_independent(torch.cat([rows_of(n / (self.noise * std)) for n in (first, second)]))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_at_a_seam(self, channels, dtype):
        shape = self.shape(channels)
        residual, skip = channels_last(shape, 0, dtype), channels_last(shape, 1, dtype)
        scale, shift = torch.linspace(0.5, 2, channels), torch.linspace(-1, 1, channels)
        module = NoiseInjection(self.noise, generator=seeded(2))
        seams = [Seam(residual, skip, (scale, shift), module) for _ in range(2)]
        seam = seams[0]
        total = (residual.float() + skip.float()).to(dtype)
        assert torch.equal(seam.z, total)
        spread = self.noise * total.double().flatten(1).std(dim=1, correction=0).view(-1, 1, 1, 1)
        added = [(one.y.double() - one.z.double()) / spread for one in seams]
        if dtype == torch.float32:
            assert_independent(torch.cat([rows_of(n) for n in added]))
        else:  # rounded: the same draws as in float32, whose law is known
            wide = Seam(residual.float(), skip.float(), (scale, shift), self.again())
            exact = (wide.y.double() - wide.z.double()) / spread
            assert abs(added[0].std() - 1) < 0.01
            # a pair of draws lies elsewhere in the other type, so draws are compared as a set
            ours, theirs = (rows_of(n).sort(dim=1).values for n in (added[0], exact))
            assert (ours - theirs).abs().mean() < 0.01
            assert not torch.equal(added[0], added[1])
            alike = rows_of(added[0]) @ rows_of(added[0]).t() / added[0][0].numel()
            assert alike.fill_diagonal_(0).abs().max() < 6.5 / added[0][0].numel() ** 0.5
        active = (seam.y.float() * scale.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1)).relu()
        tolerance = 1e-5 if dtype == torch.float32 else 0.05
        torch.testing.assert_close(seam.active.float(), active, rtol=0.01, atol=tolerance)

    def again(self):
        return NoiseInjection(self.noise, generator=seeded(2))

    @pytest.mark.parametrize("noise", [0.0, 0.5])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_the_gradient_of_a_seam(self, channels, dtype, noise):
        """Beside autograd's in float64, the draws held fast."""
        shape = (3, channels, 24, 24)
        residual, skip, g_y, g_active = (channels_last(shape, n, dtype) for n in range(4))
        scale, shift = torch.linspace(0.5, 2, channels), torch.zeros(channels)
        module = NoiseInjection(noise, generator=seeded(2))
        seam = Seam(residual, skip, (scale, shift), module)
        # Along the draws, or the gradient through the standard deviation would hardly be there.
        g_y = g_y + (seam.y - seam.z)
        z = seam.z.double().requires_grad_()
        mean = z.mean(dim=(1, 2, 3), keepdim=True)
        std = (z - mean).square().mean(dim=(1, 2, 3), keepdim=True).sqrt()
        y = z + std * ((seam.y.double() - seam.z.double()) / std).detach()
        active = (y * scale.view(1, -1, 1, 1)).relu()
        total = (y * g_y.double()).sum() + (active * g_active.double()).sum()
        (expected,) = torch.autograd.grad(total, z)
        found = seam.back(g_y, g_active).double()
        error = (found - expected).norm() / expected.norm()
        assert error < (1e-6 if dtype == torch.float32 else 5e-3)
        # The part that comes through the standard deviation is there to be seen.
        slope = (found - seam_without_tilt(seam, scale, g_y, g_active)).norm() / expected.norm()
        assert slope > 0.05 if noise else slope < 5e-3


def seam_without_tilt(seam, scale, g_y, g_active):
    on = (seam.active != 0).double()
    return g_y.double() + g_active.double() * scale.view(1, -1, 1, 1) * on


@pytest.mark.parametrize("words", ["cc -DNOTHING", "no-such-compiler --ever"])
def test_a_compiler_with_words_and_one_that_is_not_there(words, tmp_path, monkeypatch):
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("needs a C compiler")
    monkeypatch.setenv("CC", words)
    native._compile(tmp_path / "noise.so")
    assert (tmp_path / "noise.so").read_bytes()[:4] == b"\x7fELF"
