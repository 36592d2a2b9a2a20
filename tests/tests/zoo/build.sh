#!/usr/bin/env bash
# Builds programs with many compilers, options and machines into a folder: `build.sh <folder>`. The
# file programs.tsv in the folder has a line for each program: its name, the file with its
# instructions, the file with all debug information, and the files to upload.
#
# The compilers are those of Debian 12, the Rust compiler that builds this project, and Zig if it is
# installed (`pip install ziglang` provides it as a Python module). If root runs the script and
# apt-get exists, missing packages are installed. Otherwise, programs that need them are skipped and
# named on standard error. The builds take a minute, and the installation of 1.5 GB takes longer.
set -euo pipefail
packages=(clang-19 lld-19 llvm-19 libclang-rt-19-dev clang-14 g++ binutils elfutils dwz xz-utils gfortran gnat golang-go ldc
  g++-aarch64-linux-gnu g++-arm-linux-gnueabihf g++-riscv64-linux-gnu)
# dpkg also lists removed packages, so the status must be checked.
mapfile -t missing < <(for package in "${packages[@]}"; do
  dpkg-query --show --showformat='${db:Status-Abbrev}' "$package" 2> /dev/null | grep -q ^ii || echo "$package"
done)
if [ ${#missing[@]} -gt 0 ] && command -v apt-get > /dev/null && [ "$(id -u)" = 0 ]; then
  echo "installing ${missing[*]}" >&2
  { apt-get update && apt-get install --yes --no-install-recommends "${missing[@]}"; } > /dev/null \
    || echo "the installation failed: programs that need these packages are skipped" >&2
elif [ ${#missing[@]} -gt 0 ]; then
  echo "missing packages; install them with: apt-get install ${missing[*]}" >&2
fi
sources=$(cd "$(dirname "$0")/../../fixtures/sources" && pwd)
mkdir -p "$1"
cd "$1"
if [ -n "$(ls)" ] && [ ! -e programs.tsv ]; then
  echo "$PWD contains files that this script did not create: choose another folder" >&2
  exit 1
fi
rm -rf ./*
: > programs.tsv
PATH=/usr/lib/llvm-19/bin:$PATH
game=("$sources"/game/{crash,game,renderer,scene}.cpp)
small=("$sources"/zoo/{shop,till}.cpp)
bare=(-std=c++17 -ffreestanding -fno-exceptions -fno-rtti -fno-stack-protector -nostdlib)

# `row <name> <program> [upload…]`: adds a program that contains all of its debug information.
# Without uploads, the program itself is uploaded.
row() {
  local name=$1 whole=$2
  shift 2
  apart "$name" "$whole" "$whole" "${@:-$whole}"
}

# `apart <name> <program> <whole> <upload…>`: adds a program whose debug information is in the file
# `whole`.
apart() {
  local name=$1 program=$2 whole=$3
  shift 3
  local IFS=,
  printf '%s\t%s\t%s\t%s\n' "$name" "$program" "$whole" "$*" >> programs.tsv
}

# `made <name> <command…>`: adds a program that the command writes to the file `program` in its own
# folder. The variable `uploads` contains the patterns of the files to upload; by default, the
# program itself is uploaded.
number=0
made() {
  local name=$1
  shift
  number=$((number + 1))
  mkdir -p "$number"
  if (cd "$number" && "$@") &> "$number/log"; then
    local files
    # shellcheck disable=SC2086 # the variable contains patterns
    mapfile -t files < <(cd "$number" && printf "$number/%s\n" ${uploads:-program})
    row "$name" "$number/program" "${files[@]}"
  else
    echo "skipped: $name ($(head -1 "$number/log"))" >&2
  fi
}

# `built <name> <compiler> <options…>`: as `made`, with a compiler that accepts the options of GCC.
built() {
  local name=$1
  shift
  made "$name" "$@" -Wl,--build-id=sha1 -o program
}

gcc=(g++ -std=c++17 "${game[@]}")
clang=(clang++ -std=c++17 -fuse-ld=lld "${game[@]}")
for level in -O0 -O1 -O2 -O3 -Os; do
  built "GCC $level" "${gcc[@]}" -g $level
  built "clang $level" "${clang[@]}" -g $level
done
for format in -gdwarf-3 -gdwarf-4 -gdwarf64 -g1 -g3 -fdebug-types-section -gz=zlib -gz=zlib-gnu -flto -static -static-pie -no-pie; do
  built "GCC -O2 $format" "${gcc[@]}" -g -O2 $format
done
built "GCC -O2 -gstrict-dwarf -gdwarf-2" "${gcc[@]}" -O2 -gstrict-dwarf -gdwarf-2
built "GCC -O2, parts apart" "${gcc[@]}" -g -O2 -freorder-blocks-and-partition
for format in -gdwarf-4 -gdwarf64 -g1 -gsimple-template-names -gz=zstd -flto -flto=thin -fdebug-types-section \
  -funique-internal-linkage-names -fbasic-block-sections=all -Wl,--compress-debug-sections=zstd -Wl,-z,separate-loadable-segments; do
  built "clang -O2 $format" "${clang[@]}" -g -O2 $format
done
for level in -O0 -O1 -O2; do
  built "clang $level -gline-tables-only" "${clang[@]}" $level -gline-tables-only
done
built "clang 14 -O2" clang++-14 -fuse-ld=lld -std=c++17 "${game[@]}" -g -O2
built "clang -O2, sections collected" "${clang[@]}" -g -O2 -ffunction-sections -fdata-sections -Wl,--gc-sections
built "clang -O2, sections collected and folded" "${clang[@]}" -g -O2 -ffunction-sections -Wl,--gc-sections,--icf=all
built "clang -O2, at 0x7000000" "${clang[@]}" -g -O2 -no-pie -Wl,--image-base=0x7000000
made "clang -O2, --build-id=fast" "${clang[@]}" -g -O2 -Wl,--build-id=fast -o program
made "clang -O2, --build-id=uuid" "${clang[@]}" -g -O2 -Wl,--build-id=uuid -o program
built "clang -O2, C++20" clang++ -fuse-ld=lld -std=c++20 -O2 -g "$sources/names/cxx20.cpp"

# Programs that are compiled a second time, with a profile of the first build.
guided_by_gcc() {
  g++ -std=c++17 "${game[@]}" -g -O2 -fprofile-generate -dumpbase program -o program && { ./program || true; }
  g++ -std=c++17 "${game[@]}" -g -O2 -fprofile-use -dumpbase program -freorder-blocks-and-partition -Wl,--build-id=sha1 -o program
}
made "GCC -O2, guided by a profile" guided_by_gcc
guided_by_clang() {
  "${clang[@]}" -g -O2 -fprofile-instr-generate -o measured && { LLVM_PROFILE_FILE=raw ./measured || true; }
  llvm-profdata merge raw -o profile
  "${clang[@]}" -g -O2 -fprofile-instr-use=profile "$@" -Wl,--build-id=sha1 -o program
}
made "clang -O2, guided by a profile" guided_by_clang
made "clang -O2, guided, functions split" guided_by_clang -fsplit-machine-functions

# Debug information in other files.
uploads="program *.dwo" built "GCC -O2, split, .dwo" "${gcc[@]}" -g -O2 -gsplit-dwarf
packaged() {
  "$@" && timeout 20 llvm-dwp -e program -o program.dwp
}
for version in 4 5; do
  uploads="program program.dwp" built "clang -O2, split, package of DWARF $version" \
    packaged "${clang[@]}" -g -O2 -gdwarf-$version -gsplit-dwarf
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
objcopy --strip-debug apart/whole apart/symbols
row "GCC -O2, symbols alone" apart/symbols
nm apart/whole --format=posix --defined-only | awk '$2 ~ /[TtWwi]/ { print $1 }' > apart/functions
objcopy --strip-all --keep-symbols=apart/functions apart/whole apart/within
xz --keep apart/within
objcopy --strip-all --add-section .gnu_debugdata=apart/within.xz apart/whole apart/stripped
row "GCC -O2, MiniDebugInfo" apart/symbols apart/stripped

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

for machine in aarch64-linux-gnu arm-linux-gnueabihf riscv64-linux-gnu; do
  built "GCC -O2, $machine" $machine-g++ -std=c++17 "${game[@]}" -g -O2
done
built "GCC -O2, arm-linux-gnueabihf, ARM" arm-linux-gnueabihf-g++ -std=c++17 "${game[@]}" -g -O2 -marm

# A module of the Linux kernel, and the same module linked as the kernel does it: section by section,
# in the order of the module.
kernel_module() {
  "$@" -c "${small[@]}" "$sources/zoo/modinfo.s"
  ld -r --build-id=sha1 shop.o till.o modinfo.o -o module
  {
    echo 'SECTIONS { . = 0;'
    readelf -SW module | sed -n 's/^ *\[ *[0-9]*\] \(\.text[^ ]*\) *PROGBITS.*/\1 : { *(\1) }/p'
    echo '}'
  } > linked.lds
  ld -T linked.lds module -o program
}
uploads=module made "module of the kernel" kernel_module g++ "${bare[@]}" -g -O2

# Assembly.
cp "$sources/zoo/labels.s" labels.s
for compiler in gcc clang; do
  built "assembly by $compiler" "$compiler" -nostdlib -static -g -Wl,--entry=label_of_assembly "$PWD/labels.s"
done

# macOS, and WebAssembly.
for machine in x86_64 arm64; do
  mkdir "macos-$machine"
  if (cd "macos-$machine" && clang++ "${bare[@]}" --target="$machine-apple-macos11" -O1 -g -c "${small[@]}" \
    && ld64.lld -arch "$machine" -platform_version macos 11.0 11.0 -e _run shop.o till.o -o program.macho \
    && dsymutil program.macho -o symbols --flat) &> "macos-$machine/log"; then
    apart "macOS, $machine, dSYM" "macos-$machine/program.macho" "macos-$machine/symbols" "macos-$machine/symbols"
  else
    echo "skipped: macOS, $machine ($(head -1 "macos-$machine/log"))" >&2
  fi
done

# llvm-symbolizer confuses the addresses of names and exports in WebAssembly with those of debug
# information, so it reads a file without names and exports.
mkdir wasm
for level in -O0 -O1 -O2; do
  if (cd wasm && clang++ "${bare[@]}" --target=wasm32 $level -g -Wl,--no-entry,--export=_start,--export=count,--build-id=sha1 "${small[@]}" \
    -o wasm$level && llvm-objcopy --remove-section=name --remove-section=EXPORT wasm$level nameless$level) 2> wasm/log; then
    apart "WebAssembly $level" wasm/wasm$level wasm/nameless$level wasm/wasm$level
  else
    echo "skipped: WebAssembly $level ($(tail -1 wasm/log))" >&2
  fi
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
    echo "skipped: PDB for $machine ($(tail -1 windows/log))" >&2
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
for options in "-C opt-level=0 -g" "-C opt-level=3 -g" "-C opt-level=3 -C debuginfo=line-tables-only" \
  "-C opt-level=0 -C debuginfo=line-tables-only" "-C opt-level=2 -g -C symbol-mangling-version=v0" "-C opt-level=3 -g -C lto=fat" \
  "-C opt-level=2 -g -C split-debuginfo=packed"; do
  uploads=program
  case $options in *packed) uploads="program program.dwp" ;; esac
  # shellcheck disable=SC2086 # the variable contains several options
  made "Rust $options" rustc --edition 2024 $options -C link-arg=-Wl,--build-id=sha1 -o program "$PWD/program.rs"
done
unset uploads

# Other languages.
cat > program.go <<'GO'
package main

import (
	"fmt"
	"os"
	"strings"
)

type counted map[string]int

func (words counted) add(word string) { words[strings.ToUpper(word)]++ }

func main() {
	words := counted{}
	for _, word := range os.Args {
		words.add(word)
	}
	defer func() { fmt.Println(recover()) }()
	fmt.Println(words, os.Args[len(os.Args)])
}
GO
export GOCACHE=$PWD/go-cache GO111MODULE=off
go=(go build -o program)
id=-B=0x0123456789abcdef0123456789abcdef01234567
made "Go" "${go[@]}" "$PWD/program.go"
made "Go, with a build id" "${go[@]}" -ldflags="$id" "$PWD/program.go"
made "Go, -compressdwarf=false" "${go[@]}" -ldflags="$id -compressdwarf=false" "$PWD/program.go"
made "Go, linked by GCC" "${go[@]}" -ldflags="$id -linkmode=external" "$PWD/program.go"
cat > program.f90 <<'FORTRAN'
module numbers
contains
  pure function squared(of) result(square)
    integer, intent(in) :: of
    integer :: square
    square = of * of
  end function
  subroutine fill(list)
    integer, intent(out) :: list(:)
    integer :: at
    do at = 1, size(list)
      list(at) = squared(at) + mod(at, 7)
    end do
  end subroutine
end module
program sums
  use numbers
  integer :: list(100)
  call fill(list)
  print *, sum(list), maxval(list)
end program
FORTRAN
for level in -O0 -O2; do
  built "Fortran $level" gfortran -g $level "$PWD/program.f90"
done
cat > sums.adb <<'ADA'
with Ada.Text_IO;
procedure Sums is
   type Numbers is array (1 .. 100) of Integer;
   function Squared (Of_It : Integer) return Integer is (Of_It * Of_It);
   procedure Fill (List : out Numbers) is
   begin
      for At_It in List'Range loop
         List (At_It) := Squared (At_It) + At_It mod 7;
      end loop;
   end Fill;
   List : Numbers;
   Total : Integer := 0;
begin
   Fill (List);
   for Number of List loop
      Total := Total + Number;
   end loop;
   Ada.Text_IO.Put_Line (Total'Image);
end Sums;
ADA
made "Ada -O1" gnatmake -q -g -O1 "$PWD/sums.adb" -o program -largs -Wl,--build-id=sha1
cat > program.d <<'D'
import std.algorithm, std.stdio, std.uni;
auto longest(const string[] words) { return words.maxElement!(word => word.length); }
void main(string[] words) { writeln(longest(words).toUpper, words.map!(word => word.length).sum); }
D
made "D -O2" ldc2 -g -O2 -of=program -L--build-id=sha1 "$PWD/program.d"
cat > program.zig <<'ZIG'
const std = @import("std");
fn squared(of: u64) u64 {
    return of * of;
}
noinline fn sum(most: u64) u64 {
    var total: u64 = 0;
    for (0..most) |at| total += squared(at) + at % 7;
    return total;
}
pub fn main() void {
    std.debug.print("{d}\n", .{sum(100)});
}
ZIG
zig=(zig)
command -v zig > /dev/null || zig=(python3 -m ziglang)
for mode in Debug ReleaseSafe; do
  made "Zig $mode" "${zig[@]}" build-exe -O $mode --build-id=sha1 --cache-dir "$PWD/zig-cache" -femit-bin=program "$PWD/program.zig"
done
