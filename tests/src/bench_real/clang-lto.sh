#!/usr/bin/env bash
# Builds a program with DWARF 5 and link-time optimisation for `make bench-real`: a library of C and C++, compiled by clang.
#
#   tests/src/bench_real/clang-lto.sh <directory>
#
# It creates <directory>/lto.so unless that file exists, in two minutes of one core. The sources are those of zstd and of the
# demangler of Swift, in crates that symdepot itself uses. If a tool is missing, nothing is built, a message says what to
# install, and the benchmark continues without this program.
set -euo pipefail
umask 022
export LC_ALL=C

folder=${1:?the directory to build in}
cargo=${CARGO:-cargo}
[ -f "$folder/lto.so" ] && exit

for clang in clang-19 clang; do type -P "$clang" > /dev/null && break; done
if ! type -P "$clang" > /dev/null || ! { type -P ld.lld-19 || type -P ld.lld; } > /dev/null; then
  echo "the program with link-time optimisation is skipped: clang or lld is not installed; on Debian: apt-get install clang lld"
  exit
fi
suffix=${clang#clang}

# Returns the folder of a crate.
crate() {
  "$cargo" metadata --format-version 1 --locked \
    | grep -o "\"manifest_path\":\"[^\"]*/$1-[^\"]*/Cargo.toml\"" | head -n 1 | cut -d '"' -f 4 | xargs dirname
}
zstd=$(crate zstd-sys)/zstd/lib
swift=$(crate symbolic-demangle)/vendor/swift
mkdir -p "$folder/objects"
folder=$(cd "$folder" && pwd)

flags=(-O2 -g -gdwarf-5 -flto -fPIC -fvisibility=default -w "-ffile-prefix-map=$zstd=/build/zstd" "-ffile-prefix-map=$swift=/build/swift")
compile() { # compiler, source, more flags
  local object
  object="$folder/objects/$(tr / _ <<< "${2#/}").o"
  [ -f "$object" ] || { "$1" "${flags[@]}" "${@:3}" -c "$2" -o "$object.part" && mv "$object.part" "$object"; }
}
for source in "$zstd"/{common,compress,decompress,dictBuilder,legacy}/*.c; do
  compile "$clang" "$source" -DZSTD_DISABLE_ASM -DZSTD_LEGACY_SUPPORT=1
done
for source in "$swift"/lib/Demangling/*.cpp; do
  compile "clang++$suffix" "$source" -std=c++17 -I"$swift/include" -DLLVM_DISABLE_ABI_BREAKING_CHECKS_ENFORCING=1 -DSWIFT_STDLIB_HAS_TYPE_PRINTING=1 \
    -DSWIFT_SUPPORT_OLD_MANGLING=1
done
"clang++$suffix" -flto -O2 -g -shared -fuse-ld=lld -Wl,--build-id=sha1 "$folder"/objects/*.o -o "$folder/lto.part"
mv "$folder/lto.part" "$folder/lto.so"
