"""Runs a command with long output. One line shows its progress, and the output is printed only if it fails.

    python tools/progress.py COMMAND...

On a terminal the line is rewritten in place. Elsewhere a line is printed every half minute.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time

EVERY_S = 30.0


def main(command: list[str]) -> int:
    lines, shown = list[str](), time.monotonic()
    is_terminal = sys.stdout.isatty()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            said = " ".join(line.split())[: shutil.get_terminal_size().columns - 2]
            if is_terminal:
                print(f"\r\033[K  {said}", end="", flush=True)
            elif time.monotonic() - shown > EVERY_S:
                shown = time.monotonic()
                print(f"  {said}", flush=True)
    if is_terminal:
        print("\r\033[K", end="", flush=True)
    if process.returncode:
        sys.stdout.writelines(lines)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
