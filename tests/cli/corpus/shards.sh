# Invalid shards are refused, not corrected.
$PYTHON -m corpus_files all
fails() { local status=0; "$KVTOOL" inspect -r all/pair --shard "$@" > /dev/null || status=$?; echo "$status" >&2; }
fails 3/3
fails 1
fails -1/3
fails 0/0
fails auto
export KVTOOL_SHARDS=4
fails auto
SLURM_ARRAY_TASK_ID=4 fails auto
SLURM_ARRAY_TASK_ID=x fails auto
SLURM_ARRAY_TASK_ID=1 JOB_COMPLETION_INDEX=2 fails auto
# A manifest that was edited is refused.
"$KVTOOL" corpus make all/pair -o c.jsonl -q
bad() { "$KVTOOL" inspect --corpus bad.jsonl > /dev/null || echo "$?" >&2; }
sed 's/"bytes":16768/"bytes":16769/' c.jsonl > bad.jsonl; bad
sed '$d' c.jsonl > bad.jsonl; bad
sed 's,"name":"a,"name":"../a,' c.jsonl > bad.jsonl; bad
sed 1d c.jsonl > bad.jsonl; bad
echo '[]' > bad.jsonl; bad
: > bad.jsonl; bad
"$KVTOOL" corpus make all/other || echo "$?" >&2
"$KVTOOL" corpus make none || echo "$?" >&2
# Results need a name, and each name may occur once.
first() { { "$KVTOOL" "$@" 2>&1 || true; } | sed -n 1p >&2; }
cp -r all/pair again; first inspect "$PWD/all/pair/a.safetensors" "$PWD/again/a.safetensors" --results r.jsonl
first inspect - --results r.jsonl < c.jsonl
echo nonsense > r.jsonl; first inspect -r all/pair --results r.jsonl
