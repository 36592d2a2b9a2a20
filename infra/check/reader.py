"""Compares a SymCache with the one that PyPI's `symbolic` derives from the same debug file: reader.py DIF SYMCACHE.

Prints the number of equal addresses, or exits with code 1 and prints the first difference.

One class of differences is expected, counted and printed, `beyond its section`: `symbolic` extends an ELF symbol
without a size to the next symbol, we end it at the end of its section (shared/src/debuginfo/image.rs). An address is of
this class only if we know nothing of it, `symbolic` knows the name of such a symbol and no line, and the section of the
symbol does not have the address.
"""

import struct
import sys

from symbolic.debuginfo import Archive
from symbolic.symcache import SymCache

# All addresses of a small program, and some beyond.
PROGRAM = range(0, 0x20000)
BEYOND = range(0xFFFFFF00, 0x100000100)

# The constants and structures of the ELF specification (gABI), for 64-bit files in little endian.
ELF64_LITTLE = b"\x7fELF\x02\x01"
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
SHT_SYMTAB, SHF_EXECINSTR = 2, 4


def told(cache, address):
    return [(found.symbol, found.full_path, found.line, found.lang) for found in cache.lookup(address)]


class Sections:
    """The sections with code of an ELF file, and where its symbols without a size begin."""

    def __init__(self, path):
        self.code, self.without_size = [], set()
        with open(path, "rb") as file:
            elf = file.read()
        if not elf.startswith(ELF64_LITTLE):
            return
        (at,) = struct.unpack_from("<Q", elf, 0x28)
        size, count = struct.unpack_from("<HH", elf, 0x3A)
        for header in (SECTION.unpack_from(elf, at + size * number) for number in range(count)):
            _, kind, flags, start, offset, length, *_ = header
            if flags & SHF_EXECINSTR:
                self.code.append(range(start, start + length))
            if kind == SHT_SYMTAB:
                symbols = SYMBOL.iter_unpack(elf[offset : offset + length])
                self.without_size.update(value for _, _, _, _, value, bytes in symbols if bytes == 0)

    def is_beyond(self, address, found, expected):
        """Whether only `symbolic` knows an address: as a symbol without a size that has left its section."""
        if found or len(expected) != 1:
            return False
        (symbol,) = expected
        if symbol.line != 0 or symbol.sym_addr not in self.without_size:
            return False
        own = (section for section in self.code if symbol.sym_addr in section)
        return address not in next(own, range(0))


def main(dif, path):
    ours = SymCache.open(path)
    objects = Archive.open(dif).iter_objects()
    theirs = next(cache for cache in map(SymCache.from_object, objects) if cache.debug_id == ours.debug_id)
    if ours.arch != theirs.arch or ours.version != theirs.version:
        sys.exit(f"{path}: {ours.arch} version {ours.version} instead of {theirs.arch} version {theirs.version}")
    sections = Sections(dif)
    known, beyond = 0, 0
    for address in (*PROGRAM, *BEYOND):
        expected, found = told(theirs, address), told(ours, address)
        if sections.is_beyond(address, found, list(theirs.lookup(address))):
            beyond += 1
            continue
        known += bool(expected)
        if found != expected:
            sys.exit(f"{path}: {address:#x}: {found} instead of {expected}")
    if known < 100:
        sys.exit(f"{dif}: only {known} addresses are known, which is too few for a comparison")
    print(f"{known} addresses agree; {beyond} that only symbolic knows: a symbol without a size, beyond its section")


main(*sys.argv[1:])
