# vLLM 0.33's own tier wrote these rows: K and V are next to each other in a head, and config.json replaces flags.
here="$TESTDATA/engines/vllm"
same() { "$PYTHON" "$SHARED_SUITE/same.py" "$1" "$here/expected.npz" "${@:2}"; }
cp -r "$here"/packed* . && chmod -R u+w .
read_as() { "$KVTOOL" convert -q "$1" --raw "$2" --order '*.bin' --to npz -o c.npz -f && same c.npz "$1"; }
"$KVTOOL" inspect packed --raw vllm-fs-packed::H=2,D=8 --order '*.bin'
read_as packed vllm-fs-packed::H=2,D=8
read_as packed-unequal vllm-fs-packed::H=2,D=8,V=4
"$KVTOOL" inspect packed-hnd-2-ranks --raw vllm-fs-packed-hnd::H=4,D=8 --order '*.bin' | grep -E "layout|ranks"
read_as packed-hnd-2-ranks vllm-fs-packed-hnd::H=4,D=8
"$KVTOOL" compress -q packed-hnd-2-ranks --raw vllm-fs-packed-hnd::H=4,D=8 --order '*.bin' -o a.kvz
"$KVTOOL" decompress -q a.kvz -o back && diff -r packed-hnd-2-ranks back && echo "round trip"
# The fields have their former names, and a config lacks the number of ranks.
config=$(echo packed-hnd-2-ranks/*/config.json)
sed -i 's/tokens_per_block/block_size/; s/tokens_per_hash/hash_block_size/; s/blocks_per_file/gpu_blocks_per_file/; s/bfloat16/torch.bfloat16/' "$config"
read_as packed-hnd-2-ranks vllm-fs-packed-hnd::H=4,D=8
sed -i '/parallel_agnostic/d' "$config"
"$KVTOOL" inspect packed-hnd-2-ranks --raw vllm-fs-packed-hnd::H=2,D=8 --order '0101*' || echo "exit $?"
read_as packed-hnd-2-ranks vllm-fs-packed-hnd::H=4,D=8,G=2
# Without groups a block is everything that one hash identifies.
sed -i '/"kv_cache_groups"/,/^  \],/c\  "kv_cache_groups": [],' "$config"
read_as packed-hnd-2-ranks vllm-fs-packed-hnd::L=3,H=4,D=8,G=2
sed -i '1a "canonical_format": "v1-nhd",' "$config"
"$KVTOOL" inspect packed-hnd-2-ranks --raw vllm-fs-packed-hnd::L=3,H=4,D=8 --order '*.bin' || echo "exit $?"
"$KVTOOL" inspect packed --raw vllm-fs-packed::H=3,D=8,G=2 --order '*.bin' || echo "exit $?"
"$KVTOOL" inspect packed --order '*.bin' || echo "exit $?"
