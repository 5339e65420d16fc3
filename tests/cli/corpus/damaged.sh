# A damaged archive in a folder fails; it is not skipped as another kind of file.
mkdir all all/run
cp "$TESTDATA/references/three.kvz" all/good.kvz
: > all/empty.kvz
head -c 4096 /dev/zero > all/zeros.kvz
head -c 100 all/good.kvz > all/torn.kvz
# Files that make a folder one input do not hide an archive in it.
echo '{}' > all/run/run.json
: > all/run/inside.kvz
ln -s nowhere all/link.kvz
fails() { local status=0; "$KVTOOL" "$@" || status=$?; echo "exit $status"; }
fails verify all --keep-going
fails verify -r all --keep-going
fails decompress all -o back/ --keep-going
