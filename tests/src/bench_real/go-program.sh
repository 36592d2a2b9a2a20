#!/usr/bin/env bash
# Builds a program of Go for `make bench-real`: Go's own compiler.
#
#   tests/src/bench_real/go-program.sh <directory>
#
# It creates <directory>/compile unless that file exists, in a minute of one core. The sources are part of Go. If Go is not
# installed, nothing is built, a message says what to install, and the benchmark continues without this program.
set -euo pipefail
umask 022

folder=${1:?the directory to build in}
[ -f "$folder/compile" ] && exit
if ! type -P go > /dev/null; then
  echo "the program of Go is skipped: go is not installed; on Debian: apt-get install golang-go"
  exit
fi
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
GOCACHE=$folder/cache GOTOOLCHAIN=local GOFLAGS='' go build -trimpath -o "$folder/compile.part" cmd/compile
mv "$folder/compile.part" "$folder/compile"
