"""The arithmetic of augmentation: power, mixing at a signal-to-noise ratio, convolution, exact lengths."""

from __future__ import annotations

import numpy as np


def power(x: np.ndarray) -> float:
    """Mean square of ``x`` (num_samples,), summed in float64; 0 for an empty signal."""
    # not a dot product: the order in which a BLAS adds depends on how many threads it may use, and so do the last bits
    return float(np.square(x, dtype=np.float64).sum()) / x.size if x.size else 0.0


def noise_gain(signal_power: float, noise_power: float, snr_db: float) -> float:
    """Factor for a noise of ``noise_power`` that gives ``10 log10(signal / noise) = snr_db``.

    0 where there is no such factor, because the signal or the noise is digital silence: the mix is then the signal itself.
    """
    if signal_power <= 0.0 or noise_power <= 0.0:
        return 0.0
    # square roots first: neither the quotient nor the product can leave the range of float64 for signals that float32 can hold
    return float(np.sqrt(signal_power) / np.sqrt(noise_power) * 10.0 ** (-snr_db / 20.0))


def mix(signal: np.ndarray, noise: np.ndarray, snr_db: float) -> np.ndarray:
    """``signal`` plus ``noise`` scaled to ``snr_db``; both (num_samples,), result float32. See :func:`noise_gain` for silence."""
    gain = noise_gain(power(signal), power(noise), snr_db)
    if gain == 0.0:
        return signal.astype(np.float32)
    return (signal.astype(np.float64) + gain * noise.astype(np.float64)).astype(np.float32)


def fit_length(x: np.ndarray, length: int) -> np.ndarray:
    """``x`` cut, or filled with zeros, at its end to ``length`` samples."""
    if x.size == length:
        return x
    if x.size > length:
        return x[:length]
    return np.concatenate([x, np.zeros(length - x.size, x.dtype)])


def fast_length(minimum: int) -> int:
    """The smallest number of the form 2^a 3^b 5^c that is at least ``minimum``: the FFT is quick at such lengths."""
    best = 1 << (max(minimum, 1) - 1).bit_length()
    five = 1
    while five < best:
        three = five
        while three < best:
            quotient = -(-minimum // three)
            best = min(best, three << max(quotient - 1, 0).bit_length())
            three *= 3
        five *= 5
    return best


def convolve(x: np.ndarray, h: np.ndarray, delay: int = 0) -> np.ndarray:
    """Linear convolution of ``x`` (num_samples,) with ``h``, from sample ``delay`` on and as long as ``x``; float32."""
    size = fast_length(x.size + h.size - 1)
    spectrum = np.fft.rfft(x.astype(np.float64), size) * np.fft.rfft(h.astype(np.float64), size)
    full = np.fft.irfft(spectrum, size)[: x.size + h.size - 1]
    return fit_length(full[delay:], x.size).astype(np.float32)
