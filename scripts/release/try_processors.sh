#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a program on processors other than the machine's, by qemu's user-mode emulation. Archives of every level, with a
# profile and with a base, and the files restored from them must be byte for byte those of a program that runs here, and
# documents of replays must hold the same decisions (same_answers.py).
#   scripts/release/try_processors.sh PROGRAM [CPU...]
#   scripts/release/try_processors.sh --here KVTOOL PROGRAM [CPU...]   for a PROGRAM that does not run here: KVTOOL does
# qemu-x86_64-static and qemu-aarch64-static are in Debian's qemu-user-static; QEMU names another one.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=
if [ "${1:-}" = --here ]; then here=$(realpath "$2") && shift 2; fi
program=$(realpath "${1:?which program}")
shift
case $(LC_ALL=C readelf -h "$program" | sed -n 's/.*Machine: *//p') in
  AArch64) qemu=${QEMU:-qemu-aarch64-static} cpus=(cortex-a53 neoverse-n1 max) ;;
  *) qemu=${QEMU:-qemu-x86_64-static} cpus=(qemu64 core2duo Nehalem Westmere Haswell max) ;;
esac
[ $# -eq 0 ] || cpus=("$@")
command -v "$qemu" >/dev/null || { echo "skipped: there is no $qemu"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
states=$PWD/testdata/llamacpp/states profile=$PWD/testdata/profiles/s260k.kvp

# Called in a folder of its own, so that documents name the same files.
write_answers() { # RUN...: writes what the program answers, run by this command
  local name level
  for name in s260k-v050-f16.seq0.bin s260k-v050-bf16.seq0.bin kjv3m-v050-q4_0-rotated.seq0.bin; do
    for level in compat fast default high max; do
      "$@" compress -q "$states/$name" --level $level -o "$name.$level.kvz"
      "$@" verify -q "$name.$level.kvz" --against "$states/$name"
    done
    "$@" compress -q "$states/$name" --profile "$profile" -o "$name.profile.kvz"
    "$@" compress -q "$states/$name" --base "$states/s260k-v050-f16.seq0.bin" --level high -o "$name.base.kvz"
    "$@" decompress -q "$name.high.kvz" -o "$name.restored"
  done
  cp -r "$work/examples/." .
  write_documents "$@"
}

write_documents() { # RUN...
  local run=(--kv-heads 4 --prompt-tokens 64 --trace trace/s260k trace/s260k.seq0.bin) engine
  documents() { "$@" --json --deterministic -q | sed 's/"git": .*/"git": null/'; }
  documents "$@" inspect --stats slot0.bin --kv-heads 4 >inspect.json
  documents "$@" analyze slot0.bin --kv-heads 4 --per-head --distribution >analyze.json
  documents "$@" replay evict --policy all --budget 0.5,0.25 "${run[@]}" >exact.json
  for engine in design mnn mnn-r6; do
    documents "$@" replay evict --engine $engine --block-tokens 8 --sink 4 --recent 16 --trigger-min 64 "${run[@]}" >$engine.json
  done
  documents "$@" replay quant --k q8_0,q4_0,fp8_e4m3,kivi2 --v q8_0,q5_1,turboquant_4bit_nc "${run[@]}" >quant.json
  documents "$@" replay lossless --mode store --preset gate "${run[@]}" >lossless.json
  documents "$@" gate gate/pass.json >gate.json
}

scripts/examples.sh "$work/examples"
mkdir "$work/here"
(cd "$work/here" && write_answers "${here:-$program}")
echo "here: $("${here:-$program}" --version | head -1)"
for cpu in "${cpus[@]}"; do
  seconds=$SECONDS
  rm -rf "$work/there"
  mkdir "$work/there"
  # OpenBLAS takes qemu64 for an Opteron, whose 3DNow instructions qemu does not have.
  (cd "$work/there" && { [ "$cpu" != qemu64 ] || export OPENBLAS_CORETYPE=Prescott; } &&
    write_answers "$qemu" -cpu "$cpu" "$program") || { echo "$cpu: fails"; exit 1; }
  same=$(scripts/release/same_answers.py "$work/here" "$work/there") || { echo "$same"; echo "$cpu: not as here"; exit 1; }
  version=$("$qemu" -cpu "$cpu" "$program" --version | head -1)
  echo "$cpu: ${version##*, }, the same $same, $((SECONDS - seconds)) s"
done
