# A link with the name of a store's marker does not make a folder a store.
mkdir folder; echo x > x; ln -s ../x folder/kvtool-store
status=0; "$KVTOOL" verify folder 2> err || status=$?
grep -c store err || true
echo "exit $status"
