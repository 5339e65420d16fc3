# A checkpoint of a few kilobytes can declare gigabytes: every command that opens weights or a trace takes
# --max-bytes, for streams, too, and doctor unpacks no more than that.
golden="$TESTDATA/golden"
"$PYTHON" "$SHARED_SUITE/bombs.py" "$golden/infinilm/pth/full_f5_fp32_flat.pth" "$golden/blend/pt/attentions.zip.pt"
try() { "$KVTOOL" "$@" > out.txt 2> err.txt && status=0 || status=$?; echo "$status: $*"; cat err.txt; }
"$KVTOOL" weights convert weights.pth -o weights.bin -qq
for limited in "" "--max-bytes 512"; do
  try weights inspect weights.pth $limited
  try weights convert weights.pth -o again.bin -f $limited
  try weights verify weights.pth $limited
  try weights diff weights.bin weights.pth $limited
  try trace inspect attentions.pt $limited
done
stream() { head -c 2000000 /dev/zero | "$KVTOOL" "$@" > out.txt 2> err.txt && status=0 || status=$?; echo "$status: $*"; cat err.txt; }
stream weights inspect - --max-bytes 1MiB
stream weights convert - -o never.bin --max-bytes 1MiB
stream weights verify - --max-bytes 1MiB
stream weights diff - weights.pth --max-bytes 1MiB
stream trace inspect - --max-bytes 1MiB
stream merge - --max-bytes 1MiB
test ! -e never.bin
# A file that was not fully checked is not called damaged.
look() { "$KVTOOL" doctor "$@" > out.txt 2> err.txt && status=0 || status=$?; sed -n 2,3p out.txt; echo "$status"; }
look weights.pth
look weights.pth --max-bytes 512
look bomb.pth
"$KVTOOL" doctor weights.pth --max-bytes 512 --json 2> err.txt > told.json || true
jq -c '.results[0] | [.kind, .sound.verdict]' told.json
$VALIDATE < told.json
# A folder is searched within the limit, too, and a manifest says which inputs could not be checked.
mkdir folder && mv attentions.pt bomb.pth folder
"$KVTOOL" doctor -r folder --max-bytes 512 2> err.txt | grep -A2 "pt" || true
"$PYTHON" -c 'import numpy
numpy.savez_compressed("folder/cache.npz", k_0=numpy.ones((200, 1, 8), "f4"), v_0=numpy.ones((200, 1, 8), "f4"))'
rm folder/bomb.pth
"$KVTOOL" corpus make folder -q | jq -c 'select(.name) | [.name, .layers, .problem]'
"$KVTOOL" corpus make folder --max-bytes 256 -q | jq -c 'select(.name) | [.name, .layers, .problem]'
try replay-mlp folder/cache.npz --weights weights.pth --max-bytes 20KiB
stream replay-mlp folder/cache.npz --weights - --max-bytes 1MiB
# The limit also holds for a recorded run: its trace and its snapshot.
"$PYTHON" "$SHARED_SUITE/../runs/made_run.py" "$TESTDATA" run
cp folder/attentions.pt folder/cache.npz run
jq '.files.trace = "attentions.pt"' run/run.json > told.json && mv told.json run/run.json
"$KVTOOL" inspect run | sed -n '/  trace/p'
try inspect run --max-bytes 512
jq '.files.snapshot = "cache.npz" | .files.trace = null' run/run.json > told.json && mv told.json run/run.json
"$KVTOOL" doctor run --max-bytes 256 2>&1 || echo "exit $?"
