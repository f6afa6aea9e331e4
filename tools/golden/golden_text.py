"""Writes golden files: `case NAME` lines, each followed by lines of a key and its values."""
import pathlib

MAX_PRINTED = 48


def fnv1a(values):
    digest = 0xCBF29CE484222325
    for value in values:
        for byte in int(value).to_bytes(8, "little", signed=True):
            digest = (digest ^ byte) * 0x100000001B3 % 2**64
    return digest


class GoldenText:
    def __init__(self, script, about):
        self.path = pathlib.Path(script).with_suffix(".txt")
        self.lines = [f"# {about}", f"# Written by {pathlib.Path(script).name}; do not edit."]

    def case(self, name):
        self.lines.append(f"case {name}")

    def put(self, key, *values):
        self.lines.append(" ".join([key, *map(str, values)]))

    def array(self, key, values):
        values = [int(v) for v in values]
        if len(values) <= MAX_PRINTED:
            self.put(key, *values)
        else:
            self.put(key + "_hash", fnv1a(values))

    def write(self):
        self.path.write_text("\n".join(self.lines) + "\n")
        print(f"{self.path.name}: {len(self.lines)} lines")
