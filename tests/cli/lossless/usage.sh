replay() { status=0; "$KVTOOL" replay-lossless "$TESTDATA/trace/s260k.seq0.bin" --kv-heads 4 "$@" || status=$?; echo "$status"; }
replay --prompt-tokens 96
replay --mode stores --prompt-tokens 96
replay --mode store
replay --mode store --prompt-tokens 192
replay --mode store --prompt-tokens 0
replay --mode store --prompt-tokens 96 --front-n two
replay --mode store --prompt-tokens 96 --scope kept
replay --mode store --prompt-tokens 96 --scope 4
replay --mode store --prompt-tokens 96 --async-threads 100000
replay --mode store --prompt-tokens 96 --h2o-ema-alpha high
status=0; "$KVTOOL" replay-lossless "$TESTDATA/trace/kjv3m.seq0.bin" --trace "$TESTDATA/trace/s260k" --mode full --prompt-tokens 48 || status=$?; echo "$status"
