# A remote archive is fetched only in the needed parts; other files are fetched whole.
. "$SHARED_SUITE/serve.bash"
$PYTHON - <<'END'
import numpy as np
rows = np.random.default_rng(1).normal(size=(2, 6, 1024, 2, 64)).astype(np.float16)
np.savez("served/cache.npz", **{f"{'kv'[i]}_{layer}": rows[i, layer] for i in range(2) for layer in range(6)})
END
"$KVTOOL" convert -q served/cache.npz --layout thd --to safetensors -o served/cache.safetensors
"$KVTOOL" compress -q served/cache.safetensors -o served/cache.kvz
size=$(stat -c %s served/cache.kvz)
fetched() { # PERCENT: fails if more of the archive was fetched
  awk -v most="$1" -v size="$size" '/fetched/ { if ($3 * 100 > most * size) print "too much:", $0; exit }' told
}
"$KVTOOL" inspect -v "$url/cache.kvz" 2> told > there.txt; fetched 4
"$KVTOOL" inspect served/cache.kvz > here.txt
diff <(tail -n +2 here.txt) <(tail -n +2 there.txt) && echo "inspect: the same, from the index alone"
[ "$(wc -l < log)" -le 3 ] || cat log
"$KVTOOL" decompress -v "$url/cache.kvz" --layers 2 --kv k --to safetensors -o there.safetensors 2> told; fetched 12
"$KVTOOL" decompress -q served/cache.kvz --layers 2 --kv k --to safetensors -o here.safetensors
cmp there.safetensors here.safetensors && echo "decompress: one tensor of twelve, from its chunks alone"
"$KVTOOL" decompress -q "$url/cache.kvz" -o back.safetensors && cmp back.safetensors served/cache.safetensors && echo "decompress: all of it"
"$KVTOOL" verify -q "$url/cache.kvz" --against "$url/cache.safetensors" && echo "verify: against another"
"$KVTOOL" compress -q "$url/cache.safetensors" -o again.kvz && cmp again.kvz served/cache.kvz && echo "compress: the same archive"
"$KVTOOL" analyze "$url/cache.kvz" --json | jq -c '[.results[0].inputs[0].file, .exit_code]' | sed "s#$url#URL#"
# The server has a file smaller than the first range, and an empty one.
head -c 5 /dev/zero > served/five; : > served/none
for file in five none; do quietly_named "$KVTOOL" inspect "$url/$file" || echo "$?"; done
# The limit --max-bytes holds for URLs as for streams.
quietly_named "$KVTOOL" inspect "$url/cache.safetensors" --max-bytes 1MiB || echo "$?"
"$KVTOOL" inspect -q "$url/cache.kvz" --max-bytes 1MiB || echo "$?"
! grep -v '^206\|^416' log
