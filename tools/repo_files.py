"""The files that the checks look at: what git tracks or would track. Build output and the environment are ignored ones."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CXX_SUFFIXES = {".cpp", ".hpp", ".h", ".cu", ".cuh"}


def repo_files(suffixes: set[str] | None = None) -> list[pathlib.Path]:
    """Paths relative to ROOT, sorted; only those with one of the suffixes, if any are given."""
    # A checkout that belongs to another user than the one who runs the tests (root in a container) is no danger here.
    command = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT)]
    command += ["ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"the checks ask git for the project's files, which failed: {getattr(error, 'stderr', '') or error}")
    paths = sorted({pathlib.Path(name) for name in listing.split("\0") if name})
    return [path for path in paths if (ROOT / path).is_file() and (suffixes is None or path.suffix in suffixes)]
