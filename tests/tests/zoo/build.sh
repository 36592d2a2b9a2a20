#!/usr/bin/env bash
# Builds programs with many compilers, options and machines into a folder: `build.sh <folder>`. Beside them, programs.tsv has a line for each:
# its name, the program with all that it has, and what is uploaded of it. With Debian 12's
#
#   apt-get install clang-19 lld-19 llvm-19 gcc g++ binutils elfutils dwz zip
#
# and the Rust that builds this project. What is not installed is left out, and named on standard error. Half a minute.
set -euo pipefail
sources=$(cd "$(dirname "$0")/../../fixtures/sources" && pwd)
mkdir -p "$1"
cd "$1"
if [ -n "$(ls)" ] && [ ! -e programs.tsv ]; then
  echo "$PWD has files that this script did not make: name another folder" >&2
  exit 1
fi
rm -rf ./*
: > programs.tsv
PATH=/usr/lib/llvm-19/bin:$PATH
game=("$sources"/game/{crash,game,renderer,scene}.cpp)
small=("$sources"/zoo/{shop,till}.cpp)
bare=(-std=c++17 -ffreestanding -fno-exceptions -fno-rtti -fno-stack-protector -nostdlib)

# `row <name> <program> [upload…]`: without uploads, the program itself is uploaded.
row() {
  local name=$1 whole=$2
  shift 2
  local uploads=("${@:-$whole}")
  local IFS=,
  printf '%s\t%s\t%s\n' "$name" "$whole" "${uploads[*]}" >> programs.tsv
}

# `built <name> <compiler> <options…>`: one program, by all of the game's sources.
number=0
built() {
  local name=$1
  shift
  number=$((number + 1))
  mkdir -p "$number"
  if (cd "$number" && "$@" -Wl,--build-id=sha1 -o program) 2> "$number/log"; then
    row "$name" "$number/program"
  else
    echo "left out: $name ($(head -1 "$number/log"))" >&2
  fi
}

gcc=(g++ -std=c++17 "${game[@]}")
clang=(clang++ -std=c++17 -fuse-ld=lld "${game[@]}")
for level in -O0 -O1 -O2 -O3 -Os; do
  built "GCC $level" "${gcc[@]}" -g $level
  built "clang $level" "${clang[@]}" -g $level
done
for format in -gdwarf-3 -gdwarf-4 -gdwarf64 -g1 -g3 -fdebug-types-section -gz=zlib -flto -static; do
  built "GCC -O2 $format" "${gcc[@]}" -g -O2 $format
done
built "GCC -O2 -gstrict-dwarf -gdwarf-2" "${gcc[@]}" -O2 -gstrict-dwarf -gdwarf-2
built "GCC -O2, parts apart" "${gcc[@]}" -g -O2 -freorder-blocks-and-partition
for format in -gdwarf-4 -gdwarf64 -g1 -gsimple-template-names -gz=zstd -flto -flto=thin -fdebug-types-section; do
  built "clang -O2 $format" "${clang[@]}" -g -O2 $format
done
for level in -O0 -O1 -O2; do
  built "clang $level -gline-tables-only" "${clang[@]}" $level -gline-tables-only
done
built "clang -O2, C++20" clang++ -fuse-ld=lld -std=c++20 -O2 -g "$sources/names/cxx20.cpp"

# Debug information in other files.
built "GCC -O2, split, .dwo" "${gcc[@]}" -g -O2 -gsplit-dwarf
sed -i "\$s|\$|,$(echo $number/*.dwo | tr " " ",")|" programs.tsv
for version in 4 5; do
  built "clang -O2, split, package of DWARF $version" "${clang[@]}" -g -O2 -gdwarf-$version -gsplit-dwarf
  (cd $number && timeout 20 llvm-dwp -e program -o program.dwp)
  sed -i "\$s|\$|,$number/program.dwp|" programs.tsv
done
mkdir shared
"${gcc[@]}" -g -O1 -Wl,--build-id=sha1 -o shared/first
"${gcc[@]}" -g -O2 -Wl,--build-id=sha1 -o shared/second
cp shared/first shared/whole
(cd shared && dwz -m common -M common first second)
row "GCC -O1, shared by dwz" shared/whole shared/first shared/common
mkdir apart
"${gcc[@]}" -g -O2 -Wl,--build-id=sha1 -o apart/whole
objcopy --only-keep-debug apart/whole apart/debug
row "GCC -O2, debug file" apart/whole apart/debug
eu-strip -g -f apart/apart.debug -o apart/apart apart/whole
row "GCC -O2, eu-strip -g" apart/whole apart/apart.debug apart/apart

# Other machines.
for target in x86_64 i386 aarch64 armv7 armv7-thumb powerpc64 powerpc64le powerpc riscv64 riscv32 s390x mips64 mips loongarch64 sparc64; do
  options=(--target="${target%-thumb}-linux-gnu")
  case $target in
    *-thumb) options+=(-mthumb) ;;
    riscv64) options+=(-march=rv64gc -mno-relax) ;;
    riscv32) options+=(-march=rv32gc -mno-relax) ;;
    sparc64) options=(--target=sparc64-linux-gnu) ;;
  esac
  built "$target" clang++ "${bare[@]}" "${options[@]}" -fuse-ld=lld -static -O2 -g "${small[@]}"
done

# Windows.
mkdir windows
if (cd windows && clang++ "${bare[@]}" --target=x86_64-w64-windows-gnu -O1 -g -c "${small[@]}" \
  && ld.lld -m i386pep --entry=_start --build-id shop.o till.o -o mingw.exe) 2> windows/log; then
  row "MinGW, DWARF" windows/mingw.exe
fi
for machine in x86_64 i686 aarch64; do
  if (cd windows && clang++ "${bare[@]}" --target=$machine-pc-windows-msvc -O1 -g -gcodeview -c "${small[@]}" \
    && lld-link /debug /nodefaultlib /subsystem:console /entry:run /pdb:$machine.pdb /out:$machine.exe shop.o till.o) 2>> windows/log; then
    row "MSVC, PDB, $machine" windows/$machine.exe windows/$machine.pdb
  else
    echo "left out: PDB for $machine ($(tail -1 windows/log))" >&2
  fi
done

# Rust.
cat > program.rs <<'RUST'
use std::collections::BTreeMap;
fn longest<'a>(words: &'a [String]) -> Option<&'a String> { words.iter().max_by_key(|word| word.len()) }
fn main() {
    let words: Vec<String> = std::env::args().map(|word| word.to_uppercase()).collect();
    let mut counted: BTreeMap<&str, usize> = BTreeMap::new();
    for word in &words { *counted.entry(word).or_default() += 1; }
    println!("{:?} {:?}", longest(&words), counted);
}
RUST
for options in "-C opt-level=0 -g" "-C opt-level=3 -g" "-C opt-level=3 -C debuginfo=line-tables-only" "-C opt-level=2 -g -C symbol-mangling-version=v0"; do
  number=$((number + 1))
  mkdir $number
  # shellcheck disable=SC2086 # they are several
  rustc --edition 2024 $options -C link-arg=-Wl,--build-id=sha1 -o $number/program program.rs
  row "Rust $options" $number/program
done
