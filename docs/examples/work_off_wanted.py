#!/usr/bin/env python3
"""Makes the SymCaches that WPA asked for and nobody here could make, where Microsoft's symcachegen.exe is.

Asks symdepot what is wanted (GET /wanted), looks for each PDB in a folder as symchk.exe fills it, runs the tool, and copies
what it wrote to the bucket of uploads. The next client that asks is served. What is not found stays wanted.

Set in the environment:
  SYMDEPOT     where symdepot is, as in _NT_SYMCACHE_PATH
  SYMBOLS      a folder of PDBs as <name>/<GUID><age>/<name>: what symchk.exe and symstore.exe make
  SYMCACHEGEN  the tool (default: symcachegen.exe)
  UPLOADS      where to, as s3://<bucket of uploads>/global/symcache

Needs Python 3.9 and the AWS command line. On Windows, once an hour: schtasks /create /sc hourly /tn symcaches /tr "py work_off_wanted.py"
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import urllib.request


def main() -> int:
    here, uploads = os.environ["SYMDEPOT"].rstrip("/"), os.environ["UPLOADS"].rstrip("/")
    symbols = pathlib.Path(os.environ["SYMBOLS"])
    tool = os.environ.get("SYMCACHEGEN", "symcachegen.exe")
    with urllib.request.urlopen(f"{here}/wanted", timeout=60) as answer:
        wanted = json.load(answer)["wanted"]
    made = 0
    for pdb in wanted:
        path = symbols / pdb["pdb"] / pdb["id"] / pdb["pdb"]
        if not path.is_file():
            print(f"{path}: not there", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as cache:
            environment = {**os.environ, "_NT_SYMCACHE_PATH": cache, "_NT_SYMBOL_PATH": str(symbols)}
            if subprocess.run([tool, "-pdb", str(path)], env=environment).returncode != 0:
                print(f"{path}: the tool failed", file=sys.stderr)
                continue
            subprocess.run(["aws", "s3", "cp", "--recursive", "--only-show-errors", cache, uploads], check=True)
            made += 1
            print(f"{pdb['pdb']} {pdb['id']}: asked for {pdb['asked']} times, made")
    print(f"{made} of {len(wanted)} made")
    return 0


if __name__ == "__main__":
    missing = [name for name in ("SYMDEPOT", "SYMBOLS", "UPLOADS") if not os.environ.get(name)]
    if missing:
        print(__doc__, file=sys.stderr)
        sys.exit(f"not set: {', '.join(missing)}")
    try:
        sys.exit(main())
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        # No answer, an answer that is no JSON, no such program, or a copy that failed.
        sys.exit(str(error))
