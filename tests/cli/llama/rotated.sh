cd "$TESTDATA/llamacpp/states"
for rotated in auto yes no; do
  for file in kjv3m-b8352-q8_0.seq0.bin kjv3m-v050-q4_0-rotated.seq0.bin; do
    "$KVTOOL" inspect --head-dim 64 --rotated $rotated $file | grep -E 'hadamard|note' || echo "  none"
  done
done
"$KVTOOL" inspect --head-dim 8 --rotated yes s260k-v050-holes.seq0.bin
