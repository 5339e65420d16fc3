echo '{"schema": "kvtool.inspect/1"}' > other.json
echo '{"rows": [' > cut.json
"$KVTOOL" report other.json || echo "status $?"
"$KVTOOL" report cut.json || echo "status $?"
"$KVTOOL" report missing.json || echo "status $?"
"$KVTOOL" report || echo "status $?"
