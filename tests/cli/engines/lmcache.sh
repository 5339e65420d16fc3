# Reads chunks of several groups, raw-block files and names of the multiprocess server, written by LMCache's own code.
here="$TESTDATA/engines/lmcache"
same() { "$PYTHON" "$SHARED_SUITE/same.py" "$1" "$here/expected.npz" "${@:2}"; }
# Archives restore every byte, including the gaps between slots.
round() { "$KVTOOL" compress -q "$@" -o a.kvz -f && "$KVTOOL" decompress -q a.kvz -o back -f && cmp "$1" back && echo "round trip"; }
cp "$here"/*.data "$here"/*.rawblock .

chunk=org-SEP-model-v1.5@1@0@5f3a77aa@bfloat16.data
"$KVTOOL" inspect "$chunk"
"$KVTOOL" convert -q "$chunk" --head-dim 2 --to npz -o groups.npz && same groups.npz groups/0 groups/1 groups/2
round "$chunk"
"$KVTOOL" convert -q mla-3axes.data --head-dim 2 --to npz -o mla.npz && same mla.npz mla
"$KVTOOL" inspect encoder.data || echo "exit $?"

served=org-SEP-model-v1.5@0x02010100@1@00c0ffee00c0ffee@half.data
"$KVTOOL" inspect "$served" || echo "exit $?"
"$KVTOOL" inspect "$served" --raw lmcache-mp:bf16:L=3,C=8
"$KVTOOL" convert -q "$served" --raw lmcache-mp:bf16:L=3,C=8 --head-dim 2 --to npz -o mp.npz && same mp.npz mp
# A cache salt in a file name may look like an element type.
"$KVTOOL" inspect "$served" --raw lmcache-mp::L=3,C=8 || echo "exit $?"
# The model has a dot in its name, and its pages have no extension.
mkdir pages && mv org*0x*.data pages
printf '%s\n' org-SEP-model-v1.5@0x02010100@1@00c0ffee00c0ffee@half org-SEP-model-v1.5@0x02010100@0@00c0ffee00c0ffee > order
"$KVTOOL" inspect pages --raw lmcache-mp:bf16:L=3,C=8 --order order | grep layers

"$KVTOOL" inspect legacy.rawblock
"$KVTOOL" convert -q legacy.rawblock --head-dim 2 --to npz -o legacy.npz && same legacy.npz legacy
"$KVTOOL" inspect object.rawblock || echo "exit $?"
"$KVTOOL" inspect object.rawblock --order '*'
"$KVTOOL" convert -q object.rawblock --order '*' --head-dim 2 --to npz -o object.npz && same object.npz object/0+object/1+object/2
"$KVTOOL" convert -q object.rawblock --order '*@0202*' --head-dim 2 --to npz -o one.npz && same one.npz object/1
round object.rawblock --order "*"

# If the newer copy of the index is torn, the older one is used, with two chunks; if both are torn, the file is
# refused.
"$PYTHON" "$SHARED_SUITE/torn_blocks.py"
for file in newer-torn older-torn both-torn reused short; do
  "$KVTOOL" inspect $file --order '*' | grep -E "chunks|note" || echo "exit $?"
done
