"""Install a bundle into this Python: `python install.py`. Python's own library only."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> int:
    """Check every file, then pip without an index, then the simulated chip into the cache."""
    parser = argparse.ArgumentParser(description="Install joymigrate from this folder.")
    parser.add_argument("--check", action="store_true", help="only compare files with their hashes")
    given = parser.parse_args()
    document = json.loads((HERE / "bundle.json").read_text(encoding="utf-8"))
    if wrong := find_damaged(document["files"]):
        print(f"error: not as they were bundled: {', '.join(wrong)}", file=sys.stderr)
        return 2
    if given.check:
        print(f"{len(document['files'])} files are as they were bundled")
        return 0
    here = (f"{sys.version_info.major}.{sys.version_info.minor}", platform.machine())
    made = (document["python"], document["machine"])
    if here != made:
        text = f"made for Python {made[0]} on {made[1]}, this is Python {here[0]} on {here[1]}"
        print(f"error: {text}", file=sys.stderr)
        return 2
    (wheel,) = (HERE / "wheels").glob("joymigrate-*.whl")
    extras = f"[{','.join(document['extras'])}]" if document["extras"] else ""
    pip = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check", "install"]
    links = ["--no-index", "--find-links", str(HERE / "wheels")]
    done = subprocess.run([*pip, *links, f"{wheel}{extras}"], check=False)
    if done.returncode:
        return done.returncode
    for built in (HERE / "shim").glob("*"):
        target = cache() / "rehearse" / built.name
        if not target.exists():
            part = target.with_name(f".{target.name}.{os.getpid()}")
            shutil.copytree(built, part)
            part.rename(target)
    print("installed; joymigrate doctor says what is here")
    return 0


def find_damaged(files: dict[str, str]) -> list[str]:
    """Files that are missing or have another hash."""
    found = []
    for name, wanted in files.items():
        path = HERE / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != wanted:
            found.append(name)
    return found


def cache() -> Path:
    """joymigrate's cache (run.rehearse.releases.cache_root)."""
    named = os.environ.get("JOYMIGRATE_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(named) if named else Path(base) / "joymigrate"


if __name__ == "__main__":
    sys.exit(main())
