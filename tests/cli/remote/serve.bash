# Sourced: starts the server over the folder "served" and sets $url. Skips where this kvtool or this machine reads no URLs.
"$KVTOOL" targets | grep -q 'reads URLs' || { echo "this kvtool is built without support for URLs"; exit 77; }
ldconfig -p 2> /dev/null | grep -q 'libcurl[-a-z]*\.so\.4' || { echo "libcurl is not installed"; exit 77; }
mkdir -p served/private
: > log
$PYTHON "$SHARED_SUITE/range_server.py" served log port &
server=$!
trap 'kill $server 2> /dev/null || :' EXIT
for _ in $(seq 200); do [ -s port ] && break; sleep 0.05; done
url=http://127.0.0.1:$(cat port)
# Messages contain the port, which differs from run to run.
quietly_named() { "$@" 2>&1 | sed "s#$url#URL#g"; return "${PIPESTATUS[0]}"; }
