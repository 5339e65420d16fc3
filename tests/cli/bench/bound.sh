# bench prints the sizes that ideal models would need, beside the levels' sizes; no level may be much smaller than the
# mixture.
state="$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin"
"$KVTOOL" bench "$state" --bound --level default,max --rounds 1 --json > bench.json
$VALIDATE < bench.json
"$PYTHON" - <<'P'
import json
document = json.load(open("bench.json"))["results"][0]
levels = {one["name"]: one for one in document["contestants"]}
bounds = {one["model"]: one for one in document["bounds"]}
assert list(bounds) == ["alone", "above", "mixed"]
for part in "kv":
    print(part, *(f"{bounds[name][part]['ratio']:.3f}" for name in bounds),
          bounds["mixed"][part]["ratio"] > bounds["alone"][part]["ratio"])
P
"$KVTOOL" bench "$state" --bound --level max --rounds 1 2>/dev/null | tail -4 | tr -s ' '
