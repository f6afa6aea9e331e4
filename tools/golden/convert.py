"""Rounding of floating-point values into narrower types: by exact rational arithmetic, checked against NumPy and torch."""
import struct
from fractions import Fraction

import numpy as np
import torch

from golden_text import GoldenText

MASK = 2**64 - 1
COUNT = 20000


def bit_patterns(seed):
    state = seed
    for _ in range(COUNT):
        state = (state * 6364136223846793005 + 1442695040888963407) & MASK
        yield state


def inputs64(seed):
    """Exponents around those of fp16 (every third) or all of bf16's; every fourth mantissa is a tie or next to one."""
    for i, bits in enumerate(bit_patterns(seed)):
        spread, lowest = (44, 1023 - 27) if i % 3 == 0 else (300, 1023 - 160)
        exponent = lowest + (bits >> 52) % spread
        mantissa = bits & (2**52 - 1)
        if i % 4 == 0:
            kept = 10 if i % 3 == 0 else 7
            mantissa = (mantissa >> (51 - kept) | 1) << (51 - kept)  # a tie
            if i % 8 == 0:
                mantissa += (bits >> 20) % 3 - 1  # or just beside it
        yield (bits >> 63) << 63 | exponent << 52 | mantissa % 2**52


def exact(bits64):
    return Fraction(struct.unpack("<d", struct.pack("<Q", bits64))[0])


def rounded(value, negative, exponent_bits, mantissa_bits):
    """Nearest, ties to even, overflow to infinity, as bits."""
    bias = 2 ** (exponent_bits - 1) - 1
    magnitude = abs(value)
    sign = int(negative) << (exponent_bits + mantissa_bits)
    exponent = 1 - bias
    while magnitude >= Fraction(2) ** (exponent + 1):
        exponent += 1
    units = magnitude / Fraction(2) ** (exponent - mantissa_bits)
    whole, rest = divmod(units.numerator, units.denominator)
    twice = 2 * rest
    if twice > units.denominator or (twice == units.denominator and whole % 2 == 1):
        whole += 1
    if whole < 2**mantissa_bits:
        return sign | whole
    result = ((exponent + bias) << mantissa_bits) + whole - 2**mantissa_bits
    return sign | min(result, (2**exponent_bits - 1) << mantissa_bits)


def main():
    out = GoldenText(__file__, "inputs: see inputs64 and inputs32 in convert.py and convert_test.cpp; hashes of the results' bits")
    wide = list(inputs64(2024))
    single = [struct.unpack("<I", struct.pack("<f", np.float32(struct.unpack("<d", struct.pack("<Q", b))[0])))[0] for b in wide]
    out.case("fp64")
    for name, sizes in (("fp16", (5, 10)), ("bf16", (8, 7)), ("fp32", (8, 23))):
        out.array(name, [rounded(exact(b), b >> 63, *sizes) for b in wide])
    out.case("fp32")
    values = np.array(single, dtype=np.uint32).view(np.float32)
    finite = [struct.unpack("<Q", struct.pack("<d", float(v)))[0] for v in values]
    for name, sizes, other in (("fp16", (5, 10), values.astype(np.float16).view(np.uint16)),
                               ("bf16", (8, 7), torch.tensor(values).bfloat16().view(torch.int16).numpy().view(np.uint16))):
        bits = [rounded(exact(b), b >> 63, *sizes) if abs(v) != np.inf else
                ((b >> 63) << 15) | ((2 ** sizes[0] - 1) << sizes[1]) for b, v in zip(finite, values)]
        assert bits == other.tolist(), name
        out.array(name, bits)
    out.case("widen")
    halves = np.arange(2**16, dtype=np.uint16)
    kept = halves[~np.isnan(halves.view(np.float16))]
    out.array("fp16", kept.view(np.float16).astype(np.float32).view(np.uint32))
    single = halves.astype(np.uint32) << 16
    out.array("bf16", single[~np.isnan(single.view(np.float32))])
    out.write()


if __name__ == "__main__":
    main()
