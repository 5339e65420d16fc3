#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the folder in which the commands of README.md and of all pages can be run as typed: real snapshots, traces and
# weights of testdata, under the short names that the pages use.
# scripts/examples.sh [FOLDER]    build/examples by default; an existing folder is made again
set -euo pipefail
folder=$(realpath -m "${1:-$(dirname "$0")/../build/examples}")
cd "$(dirname "$0")/../testdata"

# A folder with other contents is not removed.
[ ! -e "$folder" ] || [ -e "$folder/slot0.bin" ] || rmdir "$folder"
rm -rf "$folder"
mkdir -p "$folder"
while read -r name source; do
  cp -r "$source" "$folder/$name"
done <<'END'
slot0.bin       llamacpp/states/s260k-v050-f16.seq0.bin
licence.txt     ../LICENSE
model.gguf      llamacpp/s260k-header.gguf
trace           trace
gate            gate
logs            llamacpp/logs
blend           golden/blend/replay
walk.f16        golden/mnn/codec/f16_smooth_walk_8192.in.bin
engine.gear     golden/mnn/codec/f16_smooth_walk_8192.zstd.frame.bin
compressor.bin  golden/infinilm/bin/full_f5_from_fp32_as_fp16.bin
dump_kv         golden/infinilm/dump_kv
END
