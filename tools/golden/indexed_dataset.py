"""Index and token files as bytes, packed field by field from the format's description."""
import struct

import numpy as np

from golden_text import GoldenText

CODES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 6: np.float64, 7: np.float32, 8: np.uint16}


def main():
    out = GoldenText(__file__, "Files of token sequences as bytes.")
    choose = np.random.default_rng(3)
    for code, dtype in CODES.items():
        documents = [[[int(t) for t in choose.integers(0, 127, int(choose.integers(0, 6)))]
                      for _ in range(int(choose.integers(1, 3)))] for _ in range(4)]
        sequences = [s for d in documents for s in d]
        item = np.dtype(dtype).itemsize
        lengths = [len(s) for s in sequences]
        pointers = [item * sum(lengths[:i]) for i in range(len(lengths))]
        bounds = [0]
        for document in documents:
            bounds.append(bounds[-1] + len(document))
        index = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(sequences), len(bounds))
        index += b"".join(struct.pack("<i", n) for n in lengths)
        index += b"".join(struct.pack("<q", p) for p in pointers)
        index += b"".join(struct.pack("<q", b) for b in bounds)
        out.case(f"type {np.dtype(dtype).name}")
        out.put("code", code)
        for document in documents:
            for sequence in document:
                out.put("sequence", *sequence)
            out.put("end_document")
        out.put("idx", index.hex())
        out.put("bin", b"".join(np.array(s, dtype=np.dtype(dtype).newbyteorder("<")).tobytes() for s in sequences).hex())
    out.write()


if __name__ == "__main__":
    main()
