# The folder lmcache has chunks in every form in which LMCache stores them.
cp -r "$TESTDATA/golden/blend/lmcache" lmcache
chmod -R u+w lmcache
"$KVTOOL" inspect lmcache/fs/*.data --kv-heads 2
"$KVTOOL" inspect lmcache/gds | grep -E "engine|layers|axes"
"$KVTOOL" inspect lmcache/v0_disk/*.pt | grep -E "engine|layers|axes"
"$KVTOOL" inspect lmcache/local_disk/*.pt || echo "exit $?"
"$KVTOOL" inspect lmcache/local_disk/*.pt --raw lmcache-disk::L=2,H=2,D=8
"$KVTOOL" inspect lmcache/local_disk/*.pt --raw lmcache-disk:f16:L=2,C=16 --json | $VALIDATE
for bad in "$TESTDATA"/golden/blend/bad/lmcache_*; do
  cp "$bad" .
  "$KVTOOL" inspect "$(basename "$bad")" || echo "exit $?"
  "$KVTOOL" inspect --from lmcache "$(basename "$bad")" || echo "exit $?"
done
