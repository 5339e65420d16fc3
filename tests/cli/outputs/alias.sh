# An output that is an input or another output, under whatever name, gives exit 2 before anything is read, even with -f.
"$PYTHON" "$SHARED_SUITE/../archive/make.py" a.bin 0.25
"$KVTOOL" compress -q --from opaque a.bin
raw=f16:2LTHD:2,2,?,8,64
"$KVTOOL" convert -q --raw $raw a.bin --to npz -o s.npz
"$KVTOOL" convert -q --raw $raw a.bin --to mnn-dump -o dump
cp s.npz t.npz
cp s.npz w.bin
echo '{}' > c.json
echo '{}' > b.json
mkdir logs
echo x > logs/summary.json
ln a.bin hard.bin
ln -s a.bin soft.bin
ln dump/layer_0/k_t0_256.bin inside.bin 2>&- || ln "$(find dump -name 'k_*' | sed -n 1p)" inside.bin
state() { find . -type f ! -name said ! -name covered -exec cksum {} + | sort; }
state > ../before.$$
trap 'rm -f ../before.$$' EXIT
refused() {
  status=0
  "$KVTOOL" "$@" > said 2>&1 || status=$?
  if [ $status != 2 ] || ! grep -q -e 'would be written over an input' -e 'are the same file' said; then
    echo "$*: exit $status"
    cat said
  fi
  state | cmp -s - ../before.$$ || { echo "$*: something changed"; exit 9; }
}
# all these names denote the same input file
for name in a.bin ./a.bin "$PWD/a.bin" hard.bin soft.bin; do
  refused compress --from opaque a.bin -o "$name" -f
  refused compress --from opaque a.bin --json-out "$name" -f
done
refused compress --from opaque missing.bin a.bin --output-dir . --json-out a.bin -f
refused decompress a.bin.kvz -o a.bin.kvz -f
refused decompress a.bin.kvz --to npz -o a.bin.kvz -f
refused verify a.bin.kvz --against a.bin --json-out a.bin
refused compress dump -o "$(find dump -name 'k_*' | sed -n 1p)" -f
refused compress dump -o inside.bin -f
refused convert dump --to npy -o dump -f
mkdir holder
"$KVTOOL" compress -q dump -o holder/dump.kvz
state > ../before.$$
refused decompress holder/dump.kvz -o holder -f
# Two outputs may not go to one path, even if it does not exist yet.
refused compress --from opaque a.bin -o j --json-out j
refused compress --from opaque a.bin -o j --json-out ./logs/../j -f
refused compress --from opaque a.bin -c --json-out /dev/stdout
refused compress --from opaque a.bin ./a.bin
# tries one command with each flag that writes a file
covers() {
  command=$1
  shift
  for flag in "$@"; do echo "$command $flag" >> covered; done
}
try() {
  command=$1 input=$2 flags=$3
  shift 3
  for flag in $flags; do
    force=
    "$KVTOOL" $command --help | grep -q -e '-f, --force' && force=-f
    output=$input
    if [ $flag = --figure-out ]; then # --figure-out accepts only .svg and .pdf, so the input gets such a name, too
      output=figure.svg; ln -f "$input" $output; state > ../before.$$
    fi
    refused $command "$@" $flag "$output" $force
    echo "$command $flag" >> covered
  done
}
try "inspect" s.npz "--html-out --svg-out --figure-out --json-out --csv" s.npz
try "analyze" s.npz "--html-out --svg-out --figure-out --csv-out --json-out --csv" s.npz --distribution
try "analyze" s.npz "--offline-json-out --offline-md-out" s.npz --offline-codec adaptive
try "compress" a.bin "--output --json-out --csv" --from opaque a.bin
try "decompress" a.bin.kvz "--output --json-out --csv" a.bin.kvz
try "verify" a.bin.kvz "--json-out --csv" a.bin.kvz
try "convert" s.npz "--json-out --csv" s.npz --to npz -o x
try "convert" s.npz "--output" s.npz --to npz
try "diff" s.npz "--html-out --svg-out --figure-out --json-out --csv" s.npz t.npz
try "frame encode" a.bin "--output" --dtype f16 a.bin
try "frame decode" a.bin "--output" --dtype f16 a.bin
try "frame inspect" a.bin "--json-out --csv" a.bin
try "bench" s.npz "--html-out --svg-out --figure-out --json-out --csv" s.npz
try "replay-h2o" s.npz "--jsonl-out --html-out --svg-out --figure-out --plan-out --snapshot-out --json-out --csv" s.npz --trace t.npz
try "replay-h2o" t.npz "--plan-out" s.npz --trace t.npz
try "replay-lossless" s.npz "--jsonl-out --html-out --svg-out --figure-out --json-out --csv" s.npz --mode store --trace t.npz
try "replay-blend" s.npz "--indices-out --blended-out --html-out --svg-out --figure-out --json-out --csv" --full s.npz --chunks t.npz
try "replay-blend" t.npz "--indices-out" --full s.npz --chunks t.npz
try "replay-mlp" s.npz "--output" s.npz --weights w.bin --to npz
try "replay-mlp" w.bin "--json-out --csv" s.npz --weights w.bin
try "trace inspect" s.npz "--json-out --csv" s.npz
try "gate" s.npz "--output --md-out --cases-out --html-out --svg-out --figure-out --junit-out" --snapshot s.npz --trace t.npz
try "gate" b.json "--output" --snapshot s.npz --trace t.npz --baseline b.json
try "gate" logs/summary.json "--output" --engine-logs logs
try "gate" t.npz "--output" --snapshot s.npz --reference t.npz
try "replay-blend" w.bin "--html-out --svg-out --figure-out" --full s.npz --chunks t.npz --rope-freqs w.bin
try "report" b.json "--html-out --svg-out --figure-out --junit-out" b.json
try "weights inspect" w.bin "--json-out --csv" w.bin
try "weights convert" w.bin "--output" w.bin
try "weights convert" w.bin "--json-out --csv" w.bin -o x
try "weights verify" w.bin "--json-out --csv" w.bin
try "weights diff" w.bin "--json-out --csv" w.bin t.npz
try "plan check" b.json "--json-out" b.json --snapshot s.npz
try "plan check" s.npz "--json-out --csv" b.json --snapshot s.npz
try "replay-quant" s.npz "--html-out --svg-out --figure-out --output --json-out --csv" s.npz --trace t.npz
try "replay-quant" s.npz "--plan-out" s.npz --trace t.npz --advise --max-kl 1
try "replay-quant" t.npz "--json-out" s.npz --trace t.npz
try "advise" s.npz "--plan-out --chosen-plan-out --quant-plan-out --html-out --svg-out --figure-out --json-out --csv" s.npz --trace t.npz
try "advise" t.npz "--json-out" s.npz --trace t.npz
try "merge" b.json "--output --html-out --svg-out --figure-out --junit-out --json-out --csv" b.json
try "doctor" s.npz "--json-out --csv" s.npz
try "train" s.npz "--output --json-out --csv" s.npz -o x
# Files that a configuration names are inputs, too, and so is the configuration itself.
echo '{"schema": "kvtool.gate-config/1", "cases": [{"name": "x", "snapshot": "s.npz", "trace": "t.npz", "mode": "probe"}]}' > c.json
state > ../before.$$
refused gate c.json -o s.npz -f
refused gate c.json -o c.json -f
printf 'threads=1\n' > k.toml
state > ../before.$$
refused inspect --config k.toml s.npz --json-out k.toml
# the help of each command lists no other flag that writes
for command in inspect analyze compress decompress verify convert diff "frame encode" "frame decode" "frame inspect" bench \
  replay-h2o replay-lossless replay-blend replay-mlp "trace inspect" gate report "weights inspect" "weights convert" \
  "weights verify" "weights diff" "plan check" replay-quant advise merge doctor train; do
  for flag in $("$KVTOOL" $command --help | grep -o -e '--[a-z-]*' | grep -e '-out$' -e '^--output$' -e '^--csv$' | sort -u); do
    case "$command $flag" in
      "weights diff --output" | "weights convert --output-dir" | "plan check --plan-out") continue ;;
    esac
    grep -q -x -e "$command $flag" covered || echo "not tried: $command $flag"
  done
done
# Devices and links are written through, and still exist.
"$KVTOOL" inspect -q s.npz --json-out /dev/null > /dev/null
"$KVTOOL" replay-lossless -q s.npz --mode probe --prompt-tokens 40 --jsonl /dev/null --json-out /dev/null > /dev/null
