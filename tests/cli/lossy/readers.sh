# Every command that reads values of a lossy archive warns that they are approximations.
cp "$TESTDATA/lossy/s260k.kvx" "$TESTDATA/lossy/cache.lossy.kvz" .
warned() { grep -c 'warning: LOSSY: .* by s260k.kvx' said || cat said; }
for command in "analyze" "replay lossless --prompt-tokens 150 --mode probe" "bench --rounds 1 --levels fast" "gate --snapshot"; do
  echo "-- $command"
  "$KVTOOL" $command cache.lossy.kvz > shown 2> said || echo "exit $?"
  warned
done
echo "-- convert, and the converted cache is a cache like any other"
"$KVTOOL" convert cache.lossy.kvz --to safetensors -o cache.safetensors 2> said || echo "exit $?"
warned
"$KVTOOL" inspect cache.safetensors | grep -ci lossy
true
