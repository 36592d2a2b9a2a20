#!/usr/bin/env python3
"""Draws what `symdepot demo` prints on a terminal as an SVG.

    cargo build -p symdepot-cli
    python3 docs/plots/terminal.py target/debug/symdepot > docs/plots/terminal.svg

It starts the service in an empty folder, and stops it afterwards. The test
`the_picture_in_the_readme_is_what_the_demo_prints` compares the picture with the program.
"""

import os
import re
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

COLUMNS = 120
CHARACTER = 8.4
LINE = 19
MARGIN = 20
COLOURS = {"33": "#e5c07b"}
TEXT = "#d7dae0"
BACKGROUND = "#1e2127"
COMMAND = "demo"
SGR = re.compile(r"\x1b\[([0-9;]*)m")


def printed(program: Path) -> str:
    """Returns what the demo prints, with its colours."""
    environment = {"CLICOLOR_FORCE": "1", "PATH": os.environ["PATH"]}
    with tempfile.TemporaryDirectory() as folder:
        options = {"cwd": folder, "env": environment, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen([program, "serve", "--port", "0"], **options) as service:
            try:
                service.stdout.readline()
                return subprocess.run([program, COMMAND], check=True, **options).stdout
            finally:
                service.terminate()


def spans(line: str) -> str:
    """Returns a line with its colours as elements of SVG, cut to the width of the terminal."""
    out, style, at, left = "", "", 0, COLUMNS
    for code in [*SGR.finditer(line), None]:
        text = line[at : code.start() if code else len(line)]
        if len(text) > left:
            text = text[: left - 1] + "…" if left else ""
        left -= len(text)
        if text:
            out += f"<tspan{style}>{escape(text)}</tspan>"
        if not code:
            return out
        at = code.end()
        styles = {"0": "", "": "", "1": ' font-weight="bold"', "2": ' fill-opacity="0.6"'}
        styles |= {number: f' fill="{colour}"' for number, colour in COLOURS.items()}
        style = styles.get(code.group(1), "")
    return out


def picture(text: str) -> str:
    lines = [f"\x1b[2m$\x1b[0m symdepot {COMMAND}", *text.rstrip("\n").split("\n")]
    width = round(COLUMNS * CHARACTER + 2 * MARGIN)
    height = len(lines) * LINE + 2 * MARGIN
    drawn = "\n".join(
        f'<text x="{MARGIN}" y="{MARGIN + (number + 1) * LINE - 5}">{spans(line)}</text>'
        for number, line in enumerate(lines)
        if line
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="ui-monospace, monospace" font-size="14" fill="{TEXT}" xml:space="preserve">\n'
        f'<rect width="{width}" height="{height}" rx="8" fill="{BACKGROUND}"/>\n{drawn}\n</svg>\n'
    )


if __name__ == "__main__":
    sys.stdout.write(picture(printed(Path(sys.argv[1]).resolve())))
