# The generator of large states writes states that the reader accepts.
make() { "$PYTHON" "$SCRIPTS/make/llama_state.py" "$@" 2>&1; }
make rows.bin --layers 2 --tokens 70 --kv-heads 2 --head-dim 64
make columns.bin --layers 2 --tokens 70 --kv-heads 2 --head-dim 64 --transposed
make blocks.bin --layers 2 --tokens 2100 --kv-heads 1 --head-dim 32 --dtype q8_0 --v-dtype q4_0
"$KVTOOL" inspect --kv-heads 2 rows.bin columns.bin | grep -E 'layers|storage'
"$KVTOOL" inspect blocks.bin | grep layers
