# Older names of flags work like the new ones, byte for byte, without a message; old forms of ranges keep their
# meaning.
s="$TESTDATA/trace/s260k.seq0.bin" t="$TESTDATA/trace/s260k" blend="$TESTDATA/golden/blend/replay"
pth="$TESTDATA/golden/infinilm/pth/full_f5_fp32_trainer.pth" dump="$TESTDATA/golden/infinilm/dump_kv"
same() { # COMMAND OLD = NEW: both groups of flags give the same output
  local all=("$@") old=() new=() common=() at=common
  for word in "${all[@]}"; do
    case $word in
      /old/) at=old ;;
      /new/) at=new ;;
      *) declare -n list=$at; list+=("$word") ;;
    esac
  done
  status=0; "$KVTOOL" "${common[@]}" "${old[@]}" --deterministic > old.out 2> old.err || status=$?
  also=0; "$KVTOOL" "${common[@]}" "${new[@]}" --deterministic > new.out 2> new.err || also=$?
  # The flags themselves appear in no document's parameters, only in messages.
  if [ $status != $also ] || [ $status -gt 1 ] || ! cmp -s old.out new.out || ! cmp -s old.err new.err; then
    echo "${common[*]}: ${old[*]} ($status) is not ${new[*]} ($also)"
    cat old.err new.err
  fi
}
h2o="replay-h2o $s --trace $t --prompt-tokens 64 --target-ratio 2 --json"
same $h2o /old/ --h2o-block-tokens 8 --h2o-sink-tokens 4 --h2o-recent-tokens 16 --h2o-trigger-min-tokens 32 --quality-rows 20 \
  /new/ --block-tokens 8 --sink 4 --recent 16 --trigger-min 32 --sample-rows 20
same $h2o --policy snapkv,streaming,h2o /old/ --window 16 --kernel 3 --sinks 2 --heavy-share 0.25 --jsonl a.jsonl -f \
  /new/ --snapkv-window 16 --snapkv-kernel 3 --streaming-sink 2 --h2o-heavy-share 0.25 --jsonl-out a.jsonl -f
same replay-lossless "$s" --trace "$t" --prompt-tokens 96 --mode store --json \
  /old/ --block-tokens 32 --hot-sink-tokens 4 --hot-recent-tokens 16 --h2o-trigger-min-tokens 32 --h2o-target-lossy-ratio 2 --predictors-k raw \
  /new/ --group-tokens 32 --hot-sink 4 --hot-recent 16 --h2o-trigger-min 32 --h2o-target-ratio 2 --k-predictors raw
same advise "$s" --trace "$t" --prompt-tokens 64 --max-error 15% --json \
  /old/ --policies streaming,block --budgets 0.5 --sinks 4 --recent 0.25 --windows 16 --rows 20 \
  /new/ --policy streaming,block --budget 0.5 --streaming-sink 4 --recent-share 0.25 --snapkv-window 16 --sample-rows 20
same replay-blend --full "$blend/full.safetensors" --layout thd --rope-base 1e4 --json \
  --chunks "$blend"/chunk?.safetensors /old/ --suffix-len 6 --ratios 0:0.5:0.25 --ratio 0.2 --old-rope local --gate "dev_v_remaining_frac@0.2.mean<=9" \
  /new/ --suffix-tokens 6 --curve-shares 0-0.5+0.25 --recompute-share 0.2 --chunks-rope local --fail-unless "dev_v_remaining_frac@0.2.mean<=9"
same bench "$s" --rounds 1 --json /old/ --levels fast --chunk 8KiB --most 64KiB /new/ --level fast --chunk-bytes 8KiB --sample-bytes 64KiB
same replay-mlp "$dump" --weights "$pth" --no-quality --json \
  /old/ --image-len 11 --factor 5 --min-seq-len 2 --seq-len 40 /new/ --image-tokens 11 --compression-factor 5 --min-groups 2 --first-tokens 40
same weights verify "$pth" --json /old/ --layers 2 --factor 5 /new/ --layer-count 2 --compression-factor 5
same analyze "$s" --kv-heads 4 --json /old/ --rope-theta 1e4 --rope-dim 8 --tokens 0:100 /new/ --rope-base 1e4 --rope-dims 8 --tokens 0-99
same analyze "$s" --kv-heads 4 --json /old/ --tokens :64 --layers 0:2 /new/ --tokens 0-63 --layers 0,1
same analyze "$s" --kv-heads 4 --json /old/ --tokens 100: /new/ --tokens 100-
# A conversion of two ranges has the rows of both, in this order.
for part in 0-9 50-69 0-9,50-69; do "$KVTOOL" convert -q "$s" --kv-heads 4 --tokens $part --to npy -o "p$part"; done
find p0-9 p50-69 p0-9,50-69 -type f | wc -l
for k in p0-9,50-69/*k*.npy; do tail -c +129 "$k" | cksum; done > joined
for k in p0-9/*k*.npy; do cat <(tail -c +129 "$k") <(tail -c +129 "p50-69/${k##*/}") | cksum; done > apart
head -1 joined > /dev/null && cmp joined apart && echo "rows of both"
"$KVTOOL" compress -q "$s" -o a.kvz
"$KVTOOL" decompress -q a.kvz --kv-heads 4 --tokens 50-69,0-9 --to npy -o again && diff -r again p0-9,50-69 && echo "from an archive, too"
for wrong in "" - -5 5-3 3:3 1,,2 1-2-3 a 1:x; do "$KVTOOL" convert "$s" --tokens="$wrong" --to npz -o x 2> /dev/null && echo "taken: '$wrong'" || echo -n "$? "; done
echo
# Aliases are never offered, and a wrong flag is never answered with one.
"$KVTOOL" bench --mosst 1 2>&1 | grep -c -e "'--most'" || true
