# Result files and manifests that kvtool did not write are refused promptly; a file that holds no results is never
# overwritten.
$PYTHON -m corpus_files all
"$KVTOOL" inspect -r all/pair --results all.jsonl --deterministic -q
$PYTHON - <<'EOF'
import json
head, *lines = open("all.jsonl").read().splitlines()
def write(name, head, lines):
    open(name, "w").write("\n".join([head, *lines]) + "\n")
def changed(line, **values):
    return json.dumps({**json.loads(line), **values})
deep = "[" * 200000 + "]" * 200000
write("deep.jsonl", head, [lines[0][:-1] + ',"x":' + deep + "}", *lines[1:]])
write("wide.jsonl", head[:-1] + "".join(f',"k{i}":1' for i in range(200000)) + "}", lines)
write("shards.jsonl", changed(head, shard={"index": 0, "count": 4000000000, "balance": "hash"}), [])
write("index.jsonl", changed(head, shard={"index": 3, "count": 2, "balance": "hash"}), lines)
write("status.jsonl", head, [changed(lines[0], exit_code=256), *lines[1:]])
write("bytes.jsonl", head, [changed(lines[0], bytes=1e300), *lines[1:]])
write("errors.jsonl", head, [changed(lines[0], errors=[7]), *lines[1:]])
write("member.jsonl", '{"schema":"kvtool.corpus/1","folder":"","entries":1,"bytes":1,"xxh3":"","z":' + deep + "}", [])
EOF
fails() { local status=0; timeout 20 "$KVTOOL" "$@" > /dev/null || status=$?; echo "$status" >&2; }
for file in deep wide shards index status bytes errors; do fails merge $file.jsonl; done
fails inspect --corpus member.jsonl
fails corpus check member.jsonl
printf precious > notes; fails inspect -r all/pair --results notes; cat notes; echo
printf 'more\nprecious\n' > notes; fails inspect -r all/pair --results notes; cat notes
fails inspect -r all/pair --results /dev/null
mkfifo pipe; fails inspect -r all/pair --results pipe
# A line that could begin any file does not count as a torn line of results.
for begin in '{' '{"sch'; do printf '%s' "$begin" > notes; fails inspect -r all/pair --results notes; cat notes; echo; done
# A manifest may name only folders below its own, unless the command line names one.
"$KVTOOL" corpus make all/pair -o inside.jsonl -q
for folder in "$PWD/all/pair" ../elsewhere all/../../elsewhere all/pair ./all//pair/. ; do
  jq -c --arg folder "$folder" 'if .schema == "kvtool.corpus/1" then .folder = $folder else . end' inside.jsonl > folder.jsonl
  echo "$folder" | sed "s,$PWD,HERE," >&2; fails inspect --corpus folder.jsonl -q; fails corpus check folder.jsonl
  fails inspect --corpus folder.jsonl -q --corpus-dir all/pair
done
mkdir beside; "$KVTOOL" corpus make all/pair -o beside/outside.jsonl
# If the first line was torn, all inputs are run again.
for bytes in 0 28 40; do
  head -c $bytes all.jsonl > torn.jsonl
  "$KVTOOL" inspect -r all/pair --results torn.jsonl --deterministic -q
  diff <(sort all.jsonl) <(sort torn.jsonl)
done
