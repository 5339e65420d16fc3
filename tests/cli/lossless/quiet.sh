# Settings that leave nothing to do give the reason; for quantised caches the replayed type is named.
"$KVTOOL" replay-lossless "$TESTDATA/trace/s260k.seq0.bin" --kv-heads 4 --mode store --prompt-tokens 96 --deterministic
"$KVTOOL" replay-lossless "$TESTDATA/trace/s260k.seq0.bin" --kv-heads 4 --mode store --prompt-tokens 96 --h2o-trigger-min-tokens 1 --json | jq -r '.results[0] | .why_nothing'
"$KVTOOL" replay-lossless "$TESTDATA/llamacpp/states/kjv3m-b8352-q8_0.seq0.bin" --kv-heads 2 --rotated no --mode full --prompt-tokens 128 --hot-recent-tokens 16 \
  --h2o-trigger-min-tokens 64 --block-tokens 32 --json | jq -c '.results[0] | [.content.equal, .no_speed_reason, .measured.decode_calls > 0]'
