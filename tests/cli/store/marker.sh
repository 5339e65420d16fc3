# A link called as the marker of a store makes no store of a folder.
mkdir folder; echo x > x; ln -s ../x folder/kvtool-store
status=0; "$KVTOOL" verify folder 2> err || status=$?
grep -c store err || true
echo "exit $status"
