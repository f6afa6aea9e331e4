"""Ids of `primus-cli data` beside those of the `tokenizers` and `sentencepiece` packages.

usage: tokenizer_test.py [folder with tokenizers trained earlier]
environment: PRIMUS_SOAK=1 a million wild texts instead of ten thousand, and every text of the documentation folders
"""

import json
import os
import random
import sys
import tempfile
from pathlib import Path

from command import Checks, run, run_json, skip

try:
    import numpy as np
    import sentencepiece
    import tokenizers

    import tokenizer_cases as cases
except ImportError as error:
    skip(f"this Python lacks a package: {error}")

SOAK = bool(os.environ.get("PRIMUS_SOAK"))
BATCH = 20_000


def sequences(prefix):
    """The sequences of a .bin/.idx pair, read by the format's description alone."""
    index = Path(f"{prefix}.idx").read_bytes()
    dtype = {4: np.int32, 8: np.uint16}[index[17]]
    count = int(np.frombuffer(index, np.uint64, 1, 18)[0])
    lengths = np.frombuffer(index, np.int32, count, 34)
    tokens = np.fromfile(f"{prefix}.bin", dtype)
    ends = np.cumsum(lengths)
    return [tokens[end - length : end].tolist() for end, length in zip(ends, lengths)]


def prepared(folder, kind, model, texts):
    """Ids of each text, through JSON lines and .bin/.idx. An empty text gives no document, so it must not be there."""
    corpus = folder / "corpus.jsonl"
    with corpus.open("w", encoding="utf-8") as file:
        for text in texts:
            file.write(json.dumps({"text": text}, ensure_ascii=len(text) % 2 == 0) + "\n")
    run("data", "prepare", "--input", corpus, "--output-prefix", folder / "ids", "--tokenizer-type", kind,
        "--tokenizer-model", model, "--no-append-eod")
    return sequences(folder / "ids_text_document")


def compare(checks, name, texts, ours, theirs):
    checks.that(len(ours) == len(theirs), f"{name}: {len(ours)} documents instead of {len(theirs)}")
    for text, a, b in zip(texts, ours, theirs):
        checks.that(a == b, f"{name}: {text[:300]!a}\n  ours   {a[:60]}\n  theirs {b[:60]}")


def encode_file(folder, kind, model, content):
    (folder / "raw").write_bytes(content)
    return run_json("data", "encode", "--input", folder / "raw", "--tokenizer-type", kind, "--tokenizer-model", model,
                    "--offsets")


def invalid_bytes(source):
    """UTF-8 with parts cut out and put in."""
    content = bytearray(cases.wild_text(source).encode())
    for _ in range(source.randint(1, 6)):
        at = source.randint(0, len(content))
        if source.random() < 0.5:
            content[at:at] = bytes([source.choice([0x80, 0xC0, 0xE4, 0xED, 0xF0, 0xF4, 0xFF, 0x00])])
        else:
            del content[at : at + 1]
    return bytes(content)


def machine_texts():
    folders = ["/usr/share/common-licenses", "/usr/share/doc"] + ([os.path.dirname(os.__file__)] if SOAK else [])
    limit = 10**12 if SOAK else 1_000_000
    return [text for text in cases.training_texts(folders, limit) if text]


def check_hugging_face(checks, folder, name, path, batches, source):
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    for texts in batches():
        theirs = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
        compare(checks, name, texts, prepared(folder, "HuggingFaceTokenizer", path, texts), theirs)
    for _ in range(4):
        content = invalid_bytes(source)
        theirs = tokenizer.encode(content.decode("utf-8", "replace"))
        ours = encode_file(folder, "HuggingFaceTokenizer", path, content)
        checks.that(ours["ids"] == theirs.ids, f"{name}: {content}")
    text = "A licence, 12345 of them: é中 👍🏽 end"
    theirs = tokenizer.encode(text)
    ours = encode_file(folder, "HuggingFaceTokenizer", path, text.encode())
    checks.that(ours["ids"] == theirs.ids, f"{name}: {text}")
    if tokenizer.normalizer is None:  # elsewhere offsets go by what normalisation changed as a whole
        at = [0]
        for character in text:
            at.append(at[-1] + len(character.encode()))
        expected = [[at[begin], at[end]] for begin, end in theirs.offsets]
        checks.that(ours["offsets"] == expected, f"{name}: offsets\n  ours   {ours['offsets']}\n  theirs {expected}")
    back = run_json("data", "decode", "--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", path, *ours["ids"])
    checks.that(back["text"] == tokenizer.decode(theirs.ids, skip_special_tokens=False), f"{name}: decoded {back['text']!a}")


def check_sentencepiece(checks, folder, name, path, batches):
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    ties = 0
    for texts in batches():
        ours = prepared(folder, "SentencePieceTokenizer", path, texts)
        for text, a, b in zip(texts, ours, processor.encode(texts)):
            if a != b and name in ("unigram", "unknown"):
                # Releases of the library choose differently between segmentations of the same probability.
                score = [sum(processor.get_score(i) for i in ids) for ids in (a, b)]
                checks.that(abs(score[0] - score[1]) <= 1e-5 * abs(score[1]), f"{name}: {text!a} {a} {b} {score}")
                checks.that(processor.decode(a) == processor.decode(b), f"{name}: {text!a}")
                ties += 1
            else:
                checks.that(a == b, f"{name}: {text[:300]!a}\n  ours   {a[:60]}\n  theirs {b[:60]}")
    print(f"{name}: {ties} equally probable segmentations differ")


def main():
    source = random.Random(20260)
    number = 1_000_000 if SOAK else 10_000
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        given = Path(sys.argv[1]) if len(sys.argv) > 1 else None
        texts = cases.training_texts(limit_bytes=400_000)
        if given is None:
            given = folder / "tokenizers"
            given.mkdir()
            for name, tokenizer in cases.hugging_face_tokenizers(texts):
                tokenizer.save(str(given / f"{name}.json"))
            list(cases.sentencepiece_models(texts, given))
        files = sorted(given.glob("*.json")) + sorted(given.glob("*.model"))
        checks = Checks()
        # The texts of the machine and the long ones for everybody; the wild ones shared out, so that each text is read by
        # one tokenizer in the short tier and by all of them in the long one.
        common = machine_texts() + [text for text in cases.long_texts(source)] + cases.assigned_characters()[:: 1 if SOAK else 40]
        for i, path in enumerate(files):

            def batches():
                yield common
                own = random.Random(i)
                left = number if SOAK else -(-number // len(files))
                while left > 0:
                    batch = [text for text in (cases.wild_text(own) for _ in range(min(left, BATCH))) if text]
                    left -= BATCH
                    yield batch

            if path.suffix == ".json":
                check_hugging_face(checks, folder, path.stem, path, batches, source)
            else:
                check_sentencepiece(checks, folder, path.stem, path, batches)
        checks.report("tokenizers")


if __name__ == "__main__":
    main()
