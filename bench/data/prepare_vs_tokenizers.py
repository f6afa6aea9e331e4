#!/usr/bin/env python3
"""MB/s and peak memory of `primus-cli data prepare` beside the `tokenizers` package with multiprocessing.

Both read the same JSON lines with the same tokenizer on the same number of cores and write .bin and .idx; the outputs
must be the same bytes. The other side is what Megatron's preprocess_data does: a pool of processes, each with its own
tokenizer, results in order.

usage: prepare_vs_tokenizers.py [--megabytes 200] [--workers 2] [--tokenizer FOLDER]
"""

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ["/usr/share/doc", "/usr/share/common-licenses", "/usr/lib/python3", os.path.dirname(os.__file__), "/usr/include"]


def machine_texts():
    """Texts of this machine, again and again."""
    while True:
        for folder in FOLDERS:
            for path in sorted(Path(folder).rglob("*")):
                if path.suffix in (".gz", ".so", ".pyc", ".png", ".a", ".xz") or not path.is_file() or path.is_symlink():
                    continue
                content = path.read_bytes()
                if b"\0" in content or not content:
                    continue
                yield content.decode("utf-8", "replace")


def write_corpus(path, num_bytes):
    size = 0
    with path.open("w", encoding="utf-8") as file:
        for text in machine_texts():
            size += len(text.encode())
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            if size >= num_bytes:
                return size


def start(path):
    global tokenizer
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = Tokenizer.from_file(path)


def encode(line):
    return tokenizer.encode(json.loads(line)["text"]).ids


def theirs(corpus, tokenizer_file, eod, workers, prefix):
    """Megatron's way."""
    lengths = []
    with multiprocessing.Pool(workers, start, (tokenizer_file,)) as pool, corpus.open(encoding="utf-8") as file, open(
        f"{prefix}.bin", "wb"
    ) as output:
        for ids in pool.imap(encode, file, 32):
            ids.append(eod)
            output.write(np.array(ids, dtype=np.uint16).tobytes())
            lengths.append(len(ids))
    lengths = np.array(lengths, dtype=np.int32)
    pointers = np.concatenate([[0], np.cumsum(lengths[:-1], dtype=np.int64) * 2]).astype(np.int64)
    with open(f"{prefix}.idx", "wb") as output:
        output.write(b"MMIDIDX\0\0" + np.uint64(1).tobytes() + np.uint8(8).tobytes())
        output.write(np.uint64(len(lengths)).tobytes() + np.uint64(len(lengths) + 1).tobytes())
        output.write(lengths.tobytes() + pointers.tobytes() + np.arange(len(lengths) + 1, dtype=np.int64).tobytes())


def measured(command):
    """Seconds and peak bytes of a program and its children."""
    before = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        peak = max(peak, resident_bytes(process.pid))
        time.sleep(0.02)
    if process.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {process.returncode}")
    return time.perf_counter() - before, peak


def resident_bytes(pid):
    """Of a process and its children, pages that they share counted once a sharer."""
    total = 0
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total = int(line.split()[1]) * 1024
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                total += resident_bytes(int(child))
    except (OSError, ProcessLookupError):
        pass
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokenizer", help="folder with tokenizer.json and its <|endoftext|>; without: one is trained")
    parser.add_argument("--cli", default=ROOT / "bin/primus-cli")
    parser.add_argument("--theirs", nargs=4, help=argparse.SUPPRESS)  # the other side, as a program of its own
    options = parser.parse_args()
    if options.theirs:
        corpus, tokenizer_file, eod, prefix = options.theirs
        return theirs(Path(corpus), tokenizer_file, int(eod), options.workers, prefix)

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        corpus = folder / "corpus.jsonl"
        num_bytes = write_corpus(corpus, options.megabytes * 1e6)
        tokenizer = Path(options.tokenizer or folder / "tokenizer")
        if not options.tokenizer:
            subprocess.run([options.cli, "data", "train-tokenizer", "--input", corpus, "--vocab-size", "32000", "--output",
                            tokenizer], check=True, stdout=subprocess.DEVNULL)
        eod = Tokenizer.from_file(str(tokenizer / "tokenizer.json")).token_to_id("<|endoftext|>")
        ours = [options.cli, "data", "prepare", "--input", corpus, "--tokenizer-model", tokenizer, "--output-prefix",
                folder / "ours", "--workers", str(options.workers)]
        other = [sys.executable, __file__, "--workers", str(options.workers), "--theirs", corpus,
                 tokenizer / "tokenizer.json", str(eod), folder / "theirs"]
        best = {}
        for _ in range(options.repeats):  # by turns, so that both meet the same machine
            for name, command in (("primus-cli", ours), ("tokenizers", other)):
                best[name] = min(best.get(name, (1e9, 0)), measured(list(map(str, command))))
        for end in (".bin", ".idx"):
            if (folder / f"ours_text_document{end}").read_bytes() != (folder / f"theirs{end}").read_bytes():
                sys.exit(f"the two {end} files differ")
        print(f"{num_bytes / 1e6:.1f} MB of text, {options.workers} workers, best of {options.repeats}; outputs are equal")
        for name, (seconds, peak) in best.items():
            print(f"  {name:<11} {seconds:8.2f} s  {num_bytes / 1e6 / seconds:8.1f} MB/s  peak {peak / 2**20:8.1f} MiB")
        print(f"  {best['tokenizers'][0] / best['primus-cli'][0]:.2f} times as fast")


if __name__ == "__main__":
    main()
