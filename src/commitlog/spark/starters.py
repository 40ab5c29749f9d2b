"""Shell scripts that start a program in another way than Spark would."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile


def make_starter(name: str, script: str) -> str:
    """Write a shell script into a new temporary folder and return the folder; `name` may be a path.

    The folder is removed when this process ends.
    """
    folder = tempfile.mkdtemp(prefix="commitlog-starter-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(script)
    os.chmod(path, 0o755)
    return folder
