"""Ids of a TikTokenizer beside those of the `tiktoken` package, called as Megatron calls it.

environment: PRIMUS_SOAK=1 a million wild texts instead of ten thousand
"""

import base64
import json
import os
import random
import tempfile
from pathlib import Path

from command import Checks, run, run_json, skip
from tokenizer_test import compare, sequences

try:
    import tiktoken

    import tokenizer_cases as cases
except ImportError as error:
    skip(f"this Python lacks a package: {error}")

NUMBER = 1_000_000 if os.environ.get("PRIMUS_SOAK") else 10_000
BATCH = 20_000
SPECIAL = ["<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>"]
# megatron-core's patterns "v1" and "v2".
PATTERNS = {
    "v1": r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    "v2": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
          r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}


def vocabulary(texts, size):
    """The bytes, then parts of the texts, in an order in which some can be put together in several ways."""
    source = random.Random(5)
    tokens = [bytes([byte]) for byte in range(256)]
    known = set(tokens)
    counts = {}
    data = "\n".join(texts).encode()[:300_000]
    for length in range(2, 9):
        for at in range(0, len(data) - length, 7):
            part = data[at:at + length]
            counts[part] = counts.get(part, 0) + 1
    common = [part for part, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    # In rounds by length, so that longer ones can be joined of shorter ones, with a few out of turn.
    for length in range(2, 9):
        chosen = [part for part in common if len(part) == length][:size // 7]
        source.shuffle(chosen)
        tokens += [part for part in chosen if part not in known]
        known.update(chosen)
    return tokens


def main():
    texts = cases.training_texts(limit_bytes=400_000)
    tokens = vocabulary(texts, 8000)
    checks = Checks()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        file = folder / "vocab.json"
        file.write_text(json.dumps([{"rank": i, "token_bytes": base64.b64encode(t).decode(), "token_str": None}
                                    for i, t in enumerate(tokens)]))
        for name, pattern in PATTERNS.items():
            special = 100
            model = tiktoken.Encoding(name=name, pat_str=pattern,
                                      mergeable_ranks={t: i + special for i, t in enumerate(tokens)},
                                      special_tokens={t: i for i, t in enumerate(SPECIAL)})
            words = ["--tokenizer-type", "TikTokenizer", "--tokenizer-model", file, "--tiktoken-pattern", name,
                     "--special-ids", special, "--vocab-size", special + len(tokens)]
            own = random.Random(name)
            # tiktoken's own expressions overflow its stack on long runs.
            batches = [[t for t in texts + list(cases.long_texts(own)) if 0 < len(t) < 20_000]]
            for left in range(NUMBER // 2, 0, -BATCH):
                batches.append([t for t in (cases.wild_text(own) for _ in range(min(left, BATCH))) if t])
            for batch in batches:
                corpus = folder / "corpus.jsonl"
                with corpus.open("w", encoding="utf-8") as out:
                    for text in batch:
                        out.write(json.dumps({"text": text}) + "\n")
                run("data", "prepare", "--input", corpus, "--output-prefix", folder / "ids", "--no-append-eod", *words)
                compare(checks, name, batch, sequences(folder / "ids_text_document"), model.encode_ordinary_batch(batch))
            text = "A licence, 12345 of them: é中 👍🏽 </s> end"
            (folder / "raw").write_text(text)
            ids = run_json("data", "encode", "--input", folder / "raw", *words)["ids"]
            checks.that(ids == model.encode_ordinary(text), f"{name}: {ids}")
            checks.that(run_json("data", "decode", *words, *ids)["text"] == text, f"{name}: decoded")
    checks.report("tiktoken")


main()
