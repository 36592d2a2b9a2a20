#!/usr/bin/env bash
# Builds a large PDB for `make bench-plots`: RocksDB with its tool `ldb` for Windows, compiled by clang, linked by lld.
#
#   tests/src/bench_plots/large-pdb.sh <directory>
#
# It creates <directory>/ldb.pdb unless that file exists, in about 25 minutes on one core. RocksDB comes from the crate
# librocksdb-sys, fetched by cargo; the flags and sources are those of that crate's build.rs. If a tool is missing, nothing
# is built, a message says what to install, and the benchmark continues without this program.
set -euo pipefail
umask 022
export LC_ALL=C

folder=${1:?the directory to build in}
cargo=${CARGO:-cargo}
[ -f "$folder/ldb.pdb" ] && exit

for tool in clang++ ld.lld x86_64-w64-mingw32-g++-posix; do
  if ! type -P "$tool" > /dev/null; then
    echo "the large PDB is skipped: $tool is not installed; on Debian: apt-get install clang lld g++-mingw-w64-x86-64-posix"
    exit
  fi
done

mkdir -p "$folder/fetch" "$folder/objects"
folder=$(cd "$folder" && pwd)
cat > "$folder/fetch/Cargo.toml" << 'END'
# This package is not built: it only declares what cargo fetches.
[package]
name = "fetch"
version = "0.0.0"
edition = "2024"
[lib]
path = "lib.rs"
[dependencies]
librocksdb-sys = "=0.17.3"
[workspace]
END
touch "$folder/fetch/lib.rs"
if ! "$cargo" fetch --quiet --manifest-path "$folder/fetch/Cargo.toml"; then
  echo "the large PDB is skipped: librocksdb-sys cannot be downloaded"
  exit
fi
manifest=$("$cargo" metadata --format-version 1 --manifest-path "$folder/fetch/Cargo.toml" \
  | grep -o '"manifest_path":"[^"]*/librocksdb-sys-[^"]*/Cargo.toml"' | cut -d '"' -f 4)
cd "$(dirname "$manifest")"

gcc=$(dirname "$(x86_64-w64-mingw32-g++-posix -print-file-name=libstdc++.a)")
# Emulated TLS, as in the C++ library of gcc.
cat > "$folder/flags" << END
--target=x86_64-w64-mingw32 -isystem $gcc/include/c++ -isystem $gcc/include/c++/x86_64-w64-mingw32
-std=c++17 -O2 -g -gcodeview -ffile-prefix-map=$PWD=/build -femulated-tls -w -include cstdint
-DNDEBUG -DWIN32 -DOS_WIN -D_MBCS -DWIN64 -DNOMINMAX -DROCKSDB_WINDOWS_UTF8_FILENAMES -DROCKSDB_SUPPORT_THREAD_LOCAL
-D_POSIX_C_SOURCE=1 -D_WIN32_WINNT=_WIN32_WINNT_VISTA -Irocksdb/include -Irocksdb -I.
END
mapfile -t sources < <(
  grep -v -E '^(util/build_version|port/port_posix|env/(env|fs|io)_posix)\.cc' rocksdb_lib_sources.txt | sed 's|^|rocksdb/|'
  printf '%s\n' rocksdb/port/win/{env_default,env_win,io_win,port_win,win_logger,win_thread}.cc rocksdb/tools/{ldb,ldb_cmd,ldb_tool,sst_dump_tool}.cc \
    rocksdb/utilities/blob_db/blob_dump_tool.cc build_version.cc
)
objects=()
for source in "${sources[@]}"; do objects+=("$folder/objects/$(tr / _ <<< "${source%.cc}").o"); done

echo "compiling RocksDB for Windows: ${#sources[@]} files"
# Compiled objects are kept, so that an interrupted build can continue.
for index in "${!sources[@]}"; do printf '%s\0%s\0%s\0' "${objects[index]}" "${sources[index]}" "$folder/flags"; done \
  | xargs -0 -n 3 -P "$(nproc)" bash -c \
    '[ -f "$0" ] || { clang++ "@$2" -c "$1" -o "$0.part" && mv "$0.part" "$0"; } || exit 255'

# Unresolved symbols are allowed, because clang's CodeView names a missing symbol for a thread-local variable, and the program
# is never run.
clang++ --target=x86_64-w64-mingw32 -L"$gcc" -fuse-ld=lld -Wl,--pdb="$folder/ldb.part" -o "$folder/ldb.exe" "${objects[@]}" \
  -Wl,-Xlink=-force:unresolved -lrpcrt4 -lshlwapi -lpthread 2> "$folder/said" \
  || { cat "$folder/said" >&2; exit 1; }
mv "$folder/ldb.part" "$folder/ldb.pdb"
