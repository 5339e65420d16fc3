cd "$TESTDATA/llamacpp/states"
"$KVTOOL" inspect s260k-b3889-f16-vtrans.session.bin synthetic-gemma3-iswa-v050.seq0.bin synthetic-qwen2vl-mrope-v050.seq0.bin
"$KVTOOL" inspect --model ../s260k-header.gguf s260k-v050-shared-prefix.session.bin
"$KVTOOL" inspect --head-dim 64 kjv3m-v050-q5_1-rotated.seq0.bin
