# A cache of transformers as llama.cpp's state: K's RoPE pairs are moved to where the architecture has them in
# llama.cpp, and back. The keys equal those of the engine's own state; scripts/check/llama_restore.py shows that the
# engine continues from such a file.
state="$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin" gguf="$TESTDATA/llamacpp/s260k-header.gguf"
"$KVTOOL" convert "$state" --kv-heads 4 --to npz -o engine.npz -qq
"$PYTHON" "$SHARED_SUITE/transformers_layout.py" "$gguf"
"$KVTOOL" convert hf.npz --to llama-state --model "$gguf" -o back.bin
cmp back.bin "$state" && echo "the engine's file"
"$KVTOOL" convert hf.npz --to torch -o hf.pt -q
"$KVTOOL" convert hf.pt --to llama-state --model "$gguf" -o back2.bin -q && "$KVTOOL" diff back2.bin "$state" -q && echo "by way of torch"
"$KVTOOL" convert "$state" --to torch --model "$gguf" -o there.pt && "$KVTOOL" diff there.pt hf.npz -q && echo "and back"
"$KVTOOL" compress hf.npz -qq && "$KVTOOL" decompress hf.npz.kvz --to llama-state --model "$gguf" -o back3.bin -q
cmp back3.bin "$state" && echo "out of an archive"
# The result of a plain forward pass with transformers' RoPE (scripts/check/transformers_cache.py).
"$KVTOOL" convert "$TESTDATA/llamacpp/transformers/s260k-24.npz" --to llama-state --model "$gguf" -o forward.bin -q
"$KVTOOL" convert "$state" --tokens 0:24 --to llama-state -o first.bin -q
"$KVTOOL" diff forward.bin first.bin --atol 0.05 -q && echo "as computed"
echo "--- models whose halves stay"
"$KVTOOL" convert hf.npz --to llama-state --model qwen2.gguf -o qwen2.bin
"$KVTOOL" diff qwen2.bin hf.npz --kv-heads 4 -q && echo unchanged
echo "--- --rope-pairs overrules"
"$KVTOOL" convert hf.npz --to llama-state --model "$gguf" --rope-pairs keep -o kept.bin -q && cmp -s kept.bin qwen2.bin && echo kept
"$KVTOOL" convert hf.npz --to llama-state --rope-pairs neighbours -o by-flag.bin && cmp by-flag.bin "$state" && echo "neighbours"
"$KVTOOL" convert "$state" --kv-heads 4 --rope-pairs neighbours:halves --to npz -o halves.npz
"$KVTOOL" convert halves.npz --to llama-state --model "$gguf" -o again.bin -q && cmp again.bin "$state" && echo "what was recorded is undone"
echo "--- unknown: refused"
try() { "$KVTOOL" convert "$@" -o refused || echo "exit $?"; }
try hf.npz --to llama-state
try hf.npz --to llama-state --model other.gguf
try "$state" --kv-heads 4 --to torch
try "$state" --kv-heads 4 --to torch --rope-pairs halves
try hf.npz --to llama-state --rope-pairs sideways
try "$TESTDATA/llamacpp/states/kjv3m-v050-q5_1-rotated.seq0.bin" --model "$TESTDATA/llamacpp/kjv3m-header.gguf" --to safetensors --rope-pairs halves
ls refused 2> /dev/null || echo "nothing written"
