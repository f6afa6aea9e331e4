#!/usr/bin/env python3
"""Makes pip reinstall what an interrupted installation left half written.

pip believes a package's .dist-info folder, even where the files beside it stop half-way. Run by the venv's own Python:
every package whose record is missing, or names a file that is missing or has another size, loses its .dist-info, so
that the next `pip install` brings it again.
"""

import csv
import pathlib
import shutil
import sysconfig


def fault(info: pathlib.Path) -> str:
    """What is wrong with an installed package, or an empty string."""
    record = info / "RECORD"
    if not record.exists():
        return "it has no record of its files"
    with record.open(newline="", encoding="utf-8") as lines:
        for name, _, size in csv.reader(lines):
            path = info.parent / name
            if not path.exists():
                # Compiled files come and go with the interpreter's flags.
                if name.endswith(".pyc"):
                    continue
                return f"{name} is missing"
            if size and path.stat().st_size != int(size):
                return f"{name} has {path.stat().st_size} bytes instead of {size}"
    return ""


def main() -> None:
    site = pathlib.Path(sysconfig.get_paths()["purelib"])
    for info in sorted(site.glob("*.dist-info")):
        reason = fault(info)
        if reason:
            print(f"{info.name}: {reason}; it will be installed again")
            shutil.rmtree(info)
    # What pip had moved aside to replace it.
    for leftover in site.glob("~*"):
        shutil.rmtree(leftover, ignore_errors=True)


if __name__ == "__main__":
    main()
