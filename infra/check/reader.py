"""Compares a SymCache of ours with the one that PyPI's `symbolic` makes of the same debug file: reader.py DIF SYMCACHE.

Exit code 1, and the first difference, where they differ; else how many addresses agree.
"""

import sys

from symbolic.debuginfo import Archive
from symbolic.symcache import SymCache

# Every address of small programs, and some around them.
PROGRAM = range(0, 0x20000)
BEYOND = range(0xFFFFFF00, 0x100000100)


def told(cache, address):
    return [(found.symbol, found.full_path, found.line, found.lang) for found in cache.lookup(address)]


def main(dif, path):
    ours = SymCache.open(path)
    objects = Archive.open(dif).iter_objects()
    theirs = next(cache for cache in map(SymCache.from_object, objects) if cache.debug_id == ours.debug_id)
    if ours.arch != theirs.arch or ours.version != theirs.version:
        sys.exit(f"{path}: {ours.arch} version {ours.version} instead of {theirs.arch} version {theirs.version}")
    known = 0
    for address in (*PROGRAM, *BEYOND):
        expected, found = told(theirs, address), told(ours, address)
        known += bool(expected)
        if found != expected:
            sys.exit(f"{path}: {address:#x}: {found} instead of {expected}")
    if known < 100:
        sys.exit(f"{dif}: {known} addresses are known, which proves nothing")
    print(f"{known} addresses agree")


main(*sys.argv[1:])
