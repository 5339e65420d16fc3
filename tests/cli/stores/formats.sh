# The table lists exactly the formats that --to accepts.
"$KVTOOL" formats
"$KVTOOL" formats --json > formats.json
$VALIDATE < formats.json
"$KVTOOL" convert none --to nothing -o none 2> refusal || true
"$PYTHON" - <<'PYTHON_END'
import json
listed = [f["name"] for f in json.load(open("formats.json"))["results"][0]["formats"] if f["writes"] and f["kind"] == "snapshot"]
accepted = open("refusal").read().splitlines()[0].split("one of ")[1].split(", ")
print("written formats agree:", listed == accepted)
PYTHON_END
