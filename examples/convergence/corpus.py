#!/usr/bin/env python3
"""Gathers real text from a Debian or Ubuntu machine: documentation, C headers and Python sources, each text once, in an
order that a seed shuffles, so that the end of the file can be held out.

usage: corpus.py OUT.jsonl [--megabytes 24] [--seed 1]
"""
import argparse
import gzip
import hashlib
import json
import random
import re
from pathlib import Path

# Folder, names that are taken, and the part of the whole that comes from there.
SOURCES = (("/usr/share/doc", r"(copyright|README.*|NEWS.*|changelog.*|.*\.(txt|md|rst|html))(\.gz)?$", 0.4),
           ("/usr/include", r".*\.(h|hpp)$", 0.25),
           ("/usr/lib", r".*\.py$", 0.35))
LARGEST = 200_000  # characters of one text: longer ones are tables and logs
SMALLEST = 500


def text_of(path):
    """The file as text; nothing if it is not UTF-8, too small or too large."""
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
        text = data.decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError, gzip.BadGzipFile):
        return None
    return text if SMALLEST <= len(text) <= LARGEST and "\0" not in text else None


def gather(folder, pattern, num_bytes, seen, rng):
    """Texts of `folder` in random order until they hold `num_bytes`; `seen`: hashes of the texts so far."""
    named = re.compile(pattern)
    paths = sorted(path for path in Path(folder).rglob("*") if named.match(path.name) and path.is_file())
    rng.shuffle(paths)
    texts = []
    for path in paths:
        if num_bytes <= 0:
            break
        text = text_of(path)
        if text is None:
            continue
        # The first lines of many files are one licence; texts that agree in the middle are one text.
        digest = hashlib.sha256(text[len(text) // 4:].encode()).digest()
        if digest in seen:
            continue
        seen.add(digest)
        texts.append(text)
        num_bytes -= len(text.encode())
    return texts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--megabytes", type=float, default=24)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    seen, texts = set(), []
    for folder, pattern, part in SOURCES:
        texts += gather(folder, pattern, arguments.megabytes * 1e6 * part, seen, rng)
    rng.shuffle(texts)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with open(arguments.out, "w", encoding="utf-8") as out:
        for text in texts:
            out.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    print(f"{arguments.out}: {len(texts)} texts, {sum(len(text.encode()) for text in texts) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
