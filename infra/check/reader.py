"""Compares a SymCache with the one that PyPI's `symbolic` derives from the same debug file: reader.py DIF SYMCACHE.

Prints the number of equal addresses, or exits with code 1 and prints the first difference.
"""

import sys

from symbolic.debuginfo import Archive
from symbolic.symcache import SymCache

# All addresses of a small program, and some beyond.
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
        sys.exit(f"{dif}: only {known} addresses are known, which is too few for a comparison")
    print(f"{known} addresses agree")


main(*sys.argv[1:])
