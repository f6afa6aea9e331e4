"""The order of training samples, from the rules and NumPy's own generators.

A sample is found here by its place in the concatenated tokens, not by walking documents, and shuffles are NumPy's.
"""
import math

import numpy as np

from golden_text import GoldenText

U64 = 2**64 - 1


# ---- GPT samples -----------------------------------------------------------------------------------------------------

def epochs_for(tokens_per_epoch, seq, wanted):
    if wanted is None:
        return 1, None
    epochs = 1
    while epochs * tokens_per_epoch < wanted * seq + 1:
        epochs += 1
    if epochs == 1:
        return 1, None
    before_final = ((epochs - 1) * tokens_per_epoch - 1) // seq
    per_epoch = (tokens_per_epoch - 1) // seq
    apart = wanted - before_final < int(0.80 * per_epoch)
    return epochs, before_final if apart else None


def gpt_index(lengths, begin, end, seq, wanted, seed, keep_partial):
    documents = np.arange(begin, end, dtype=np.int32)
    tokens_per_epoch = int(lengths[begin:end].sum())
    epochs, before_final = epochs_for(tokens_per_epoch, seq, wanted)
    random = np.random.RandomState(seed)
    if before_final is None:
        order = np.tile(documents, epochs)
        random.shuffle(order)
    else:
        head, tail = np.tile(documents, epochs - 1), documents.copy()
        random.shuffle(head)
        random.shuffle(tail)
        order = np.concatenate([head, tail])

    ends = np.cumsum(lengths[order], dtype=np.int64)
    steps = epochs * tokens_per_epoch - 1
    count = -(-steps // seq) if keep_partial else steps // seq
    starts = []
    for sample in range(count + 1):
        token = min(sample * seq, steps)
        position = int(np.searchsorted(ends, token, side="right"))
        if sample == 0:
            position = 0  # a first document without tokens still is where the first sample begins
        before = int(ends[position - 1]) if position else 0
        starts.append((position, token - before))
    if count == 0:
        starts = []

    shuffle = np.arange(count, dtype=np.uint32)
    if before_final is None:
        random.shuffle(shuffle)
    else:
        random.shuffle(shuffle[:before_final])
        random.shuffle(shuffle[before_final:])
    return epochs, before_final, order, starts, shuffle


def gpt_sample(lengths, order, shuffle, seq, i):
    """Tokens are 100000 * document + place, so that any mix-up shows."""
    stream = np.concatenate([100000 * int(d) + np.arange(lengths[d]) for d in order])
    begin = int(shuffle[i]) * seq
    tokens = [int(t) for t in stream[begin:begin + seq + 1]]
    return tokens + [-1] * (seq + 1 - len(tokens))


def write_gpt(out, name, lengths, begin, end, seq, wanted, seed, keep_partial):
    lengths = np.array(lengths, dtype=np.int32)
    epochs, before_final, order, starts, shuffle = gpt_index(lengths, begin, end, seq, wanted, seed, keep_partial)
    out.case(f"gpt {name}")
    out.put("lengths", *lengths)
    out.put("range", begin, end)
    out.put("seq_length", seq)
    if wanted is not None:
        out.put("num_samples", wanted)
    out.put("seed", seed)
    out.put("keep_partial", int(keep_partial))
    out.put("epochs", epochs)
    out.put("before_final", -1 if before_final is None else before_final)
    out.array("documents", order)
    out.array("samples", [x for pair in starts for x in pair])
    out.array("shuffle", shuffle)
    if len(shuffle):
        out.array("first_sample", gpt_sample(lengths, order, shuffle, seq, 0))
        last = gpt_sample(lengths, order, shuffle, seq, len(shuffle) - 1)
        out.array("last_sample", last)


def gpt_cases(out):
    for wanted in (6, 12, 20):
        write_gpt(out, f"published n={wanted}", [5, 9, 4, 12, 7, 3], 0, 6, 8, wanted, 1234, False)
    choose = np.random.default_rng(20240601)
    for case in range(48):
        big = case >= 32
        documents = int(choose.integers(1, 200 if big else 12))
        lengths = choose.integers(0 if case % 3 == 0 else 1, 300 if big else 20, documents)
        lengths[int(choose.integers(0, documents))] += 2
        begin = int(choose.integers(0, documents)) if case % 4 == 1 else 0
        end = int(choose.integers(begin, documents)) + 1
        if lengths[begin:end].sum() < 2:
            begin, end = 0, documents
        seq = int(choose.integers(1, 200 if big else 17))
        per_epoch = max(1, int(lengths[begin:end].sum()) // seq)
        wanted = None if case % 5 == 4 else int(choose.integers(0, 6 * per_epoch + 2))
        write_gpt(out, f"random {case}", lengths, begin, end, seq, wanted, int(choose.integers(0, 2**32)), case % 7 == 3)


# ---- splits ----------------------------------------------------------------------------------------------------------

def split_cases(out):
    choose = np.random.default_rng(7)
    texts = ["969,30,1", "1,1,1", "99,1,0", "100,0,0", "0.5,0.5", "949,50,1", "8,1,1", "0,1,0"]
    for case in range(40):
        text = texts[case % len(texts)]
        count = int(choose.integers(0, 30)) if case < 24 else int(choose.integers(0, 10**7))
        parts = [float(p) for p in text.split(",")]
        parts = np.array(parts + [0.0] * (3 - len(parts)))
        fractions = (parts / parts.sum()).tolist()
        bounds = [0.0]
        for fraction in fractions:
            bounds.append(bounds[-1] + fraction)
        out.case(f"split {case}")
        out.put("split", text)
        out.put("num_sequences", count)
        out.put("bounds", *[int(round(b * float(count))) for b in bounds])


# ---- blends ----------------------------------------------------------------------------------------------------------

def blend(weights, size, limits=None):
    counts = [0] * len(weights)
    picks = []
    for place in range(size):
        best = None
        for d, weight in enumerate(weights):
            if limits is not None and counts[d] == limits[d]:
                continue
            lag = weight * max(place, 1.0) - counts[d]
            if best is None or lag > best[0]:
                best = (lag, d)
        picks.append((best[1], counts[best[1]]))
        counts[best[1]] += 1
    return picks


def blend_cases(out):
    choose = np.random.default_rng(11)
    for case in range(24):
        datasets = int(choose.integers(1, 9))
        exhaustive = case % 2 == 1
        if exhaustive:
            sizes = [int(s) for s in choose.integers(1, 60, datasets)]
            size = sum(sizes)
            weights = [s / size for s in sizes]
        else:
            raw = choose.random(datasets) ** (1 + case % 5) + 1e-4
            weights = [w / sum(raw.tolist()) for w in raw.tolist()]
            size = int(choose.integers(1, 400))
        picks = blend(weights, size, sizes if exhaustive else None)
        out.case(f"blend {case}")
        out.put("exhaustive", int(exhaustive))
        if exhaustive:
            out.put("limits", *sizes)
        out.put("weights", *[w.hex() for w in weights])
        out.put("size", size)
        out.array("datasets", [p[0] for p in picks])
        out.array("samples", [p[1] for p in picks])
        out.put("targets", *[math.ceil(size * w) for w in weights])
        out.put("surplus", *[int(math.ceil(math.ceil(size * w) * 1.005)) for w in weights])


# ---- whole data sources ----------------------------------------------------------------------------------------------

SPLITS = ("train", "valid", "test")


def split_bounds(text, count):
    parts = np.array([float(p) for p in text.split(",")] + [0.0] * (3 - text.count(",") - 1))
    bounds = [0.0]
    for fraction in (parts / parts.sum()).tolist():
        bounds.append(bounds[-1] + fraction)
    return [int(round(b * float(count))) for b in bounds]


def token_stream(lengths, order, file):
    """Tokens of a file's documents in this order: which file, which document, which place."""
    return np.concatenate([1000000 * file + 1000 * int(d) + np.arange(lengths[d]) for d in order])


def file_samples(lengths, file, begin, end, seq, wanted, seed):
    """All samples of a part of a file, in the order in which they are asked for."""
    lengths = np.array(lengths, dtype=np.int32)
    _, _, order, _, shuffle = gpt_index(lengths, begin, end, seq, wanted, seed, False)
    stream = token_stream(lengths, order, file)
    return [stream[int(r) * seq:int(r) * seq + seq + 1] for r in shuffle]


def blended_samples(files, ranges, numbers, weights, seq, wanted, seed):
    if len(numbers) == 1 and weights is None:
        return file_samples(files[numbers[0]], numbers[0], *ranges[0], seq, wanted, seed)
    if weights is None:
        sets = [file_samples(files[f], f, *r, seq, None, seed) for f, r in zip(numbers, ranges)]
        total = sum(len(s) for s in sets)
        size = total if wanted is None else min(wanted, total)
        picks = blend([len(s) / total for s in sets], size, [len(s) for s in sets])
    else:
        weights = [w / sum(weights) for w in weights]
        targets = [math.ceil(wanted * w) for w in weights]
        sets = [file_samples(files[f], f, *r, seq, math.ceil(t * 1.005), seed)
                for f, r, t in zip(numbers, ranges, targets)]
        picks = blend(weights, sum(targets))
    return [sets[d][i] for d, i in picks]


def source_cases(out):
    choose = np.random.default_rng(20261130)
    for case in range(40):
        seq = int(choose.integers(2, 40))
        own_lists, is_weighted = case % 3 == 2, case % 2 == 0
        split = ["90,10", "70,20,10", "969,30,1", "1,1,1", "100,0,0", "60,40,0"][int(choose.integers(0, 6))]
        # Enough in every part for a sample; where a part is rounded to nothing there must be none.
        least, seq = (1000, 4) if split == "969,30,1" else (40, seq)
        files = [[int(n) for n in choose.integers(5, 40, int(choose.integers(least, least + 60)))] for _ in range(3)]
        numbers = [int(f) for f in choose.permutation(3)[:1 + case // 2 % 3]]
        weights = [round(float(w), 3) for w in choose.random(len(numbers)) + 0.05] if is_weighted else None
        requested = [int(choose.integers(1, bound)) for bound in (400, 60, 40)]
        if not is_weighted and case % 5 == 1:
            requested = [-1, -1, -1]
        seed = int(choose.integers(0, 2**32))
        out.case(f"source {case}")
        for lengths in files:
            out.put("file", *lengths)
        words = [str(x) for pair in zip(weights or numbers, numbers) for x in pair] if weights else map(str, numbers)
        out.put("path", *words)
        out.put("weighted", int(is_weighted))
        out.put("own_lists", int(own_lists))
        out.put("split", split)
        out.put("seq_length", seq)
        out.put("seed", seed)
        out.put("requested", *requested)
        for i, name in enumerate(SPLITS):
            if own_lists:
                # A lone data set is no blend there, whatever its weight.
                used = None if len(numbers) == 1 else weights
                ranges = [(0, len(files[f])) for f in numbers]
            else:
                used = weights
                ranges = [tuple(split_bounds(split, len(files[f]))[i:i + 2]) for f in numbers]
            if all(begin == end for begin, end in ranges):
                out.put(f"{name}_count", 0)
                continue
            assert all(sum(files[f][begin:end]) > seq for f, (begin, end) in zip(numbers, ranges)), case
            samples = blended_samples(files, ranges, numbers, used, seq, None if requested[i] < 0 else requested[i], seed)
            out.put(f"{name}_count", len(samples))
            out.array(f"{name}_tokens", np.concatenate(samples) if samples else [])


# ---- cyclic order ----------------------------------------------------------------------------------------------------

def philox(seed, stream, block):
    counter = [block & 0xFFFFFFFF, block >> 32, stream & 0xFFFFFFFF, stream >> 32]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [(second >> 32) ^ counter[1] ^ key[0], second & 0xFFFFFFFF,
                   (first >> 32) ^ counter[3] ^ key[1], first & 0xFFFFFFFF]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return counter


def cyclic_order(seed, epoch, size):
    """Fisher-Yates from the end: element i changes place with floor(w * (i + 1) / 2^64), w the lower two words of
    block i of the stream named data/cyclic, moved on by the epoch."""
    stream = 0xCBF29CE484222325
    for byte in b"data/cyclic":
        stream = (stream ^ byte) * 0x100000001B3 & U64
    stream = (stream + epoch) & U64
    order = list(range(size))
    for i in range(size - 1, 0, -1):
        words = philox(seed, stream, i)
        j = (words[1] << 32 | words[0]) * (i + 1) >> 64
        order[i], order[j] = order[j], order[i]
    return order


def cyclic_cases(out):
    for seed, epoch, size in [(1234, 0, 10), (1234, 1, 10), (0, 0, 1), (7, 3, 2), (2**32 - 1, 12, 48), (42, 5, 1000)]:
        out.case(f"cyclic {seed} {epoch} {size}")
        out.put("seed", seed)
        out.put("epoch", epoch)
        out.put("size", size)
        out.array("order", cyclic_order(seed, epoch, size))


# ---- generators and mock data ----------------------------------------------------------------------------------------

def generator_cases(out):
    for seed in (0, 1, 1234, 2**32 - 1, 2**40 + 3):
        random = np.random.default_rng(seed)
        out.case(f"generator {seed}")
        out.put("seed", seed)
        out.put("raw", *np.random.PCG64(seed).random_raw(4))
        out.put("small", *random.integers(1, 7, size=12, dtype=np.int32))
        out.put("wide", *random.integers(-2**31, 2**31 - 1, size=6, dtype=np.int32))
    for seed in (0, 7, 1234, 2**32 - 1):
        for size in (1, 2, 10, 1000):
            random = np.random.RandomState(seed)
            out.case(f"shuffle {seed} {size}")
            out.put("seed", seed)
            out.put("size", size)
            values = np.arange(size, dtype=np.int64)
            random.shuffle(values)
            out.array("first", values)
            values = np.arange(size, dtype=np.int64)
            random.shuffle(values)
            out.array("second", values)
    lengths = np.random.default_rng(0).integers(1, 4096, size=100000, dtype=np.int32)
    out.case("mock")
    out.put("head", *lengths[:8])
    out.put("total", int(lengths.sum(dtype=np.int64)))
    out.array("lengths", lengths)


def main():
    out = GoldenText(__file__, "Order of training samples.")
    gpt_cases(out)
    split_cases(out)
    blend_cases(out)
    source_cases(out)
    cyclic_cases(out)
    generator_cases(out)
    out.write()


if __name__ == "__main__":
    main()
