# An archive of the current folder is named after the folder.
mkdir cache out; echo bytes > cache/a; echo more > cache/b
(cd cache && "$KVTOOL" compress . --from opaque -o ../out/ -q)
ls -A out
