# Empty folders and the executable bit are restored and compared.
umask 022
mkdir -p tree/a tree/b/c/d tree/e/f
printf '#!/bin/sh\n' > tree/run
chmod 755 tree/run
echo x > tree/a/x
"$KVTOOL" compress -q --from opaque tree
"$KVTOOL" verify -q tree.kvz --against tree
"$KVTOOL" decompress -q tree.kvz -o back
diff <(cd tree && find . -printf '%p %m\n' | sort) <(cd back && find . -printf '%p %m\n' | sort)
"$PYTHON" "$SCRIPTS/decoder/decode_kvz.py" tree.kvz python 2> /dev/null
diff <(cd tree && find . -printf '%p %m\n' | sort) <(cd python && find . -printf '%p %m\n' | sort)
rmdir back/b/c/d
"$KVTOOL" verify tree.kvz --against back || echo "exit $?"
mkdir back/b/c/d back/g
"$KVTOOL" verify tree.kvz --against back || echo "exit $?"
rmdir back/g
chmod 644 back/run && chmod 755 back/a/x
"$KVTOOL" verify tree.kvz --against back || echo "exit $?"
# The folder holds a folder with only folders in it, and an empty one.
mkdir -p none/at/all nothing
"$KVTOOL" compress -q --from opaque none nothing
"$KVTOOL" decompress -q none.kvz -o none-back && diff -r none none-back && [ -d none-back/at/all ]
"$KVTOOL" decompress -q nothing.kvz -o nothing-back && [ -d nothing-back ] && [ -z "$(ls -A nothing-back)" ]
# Without empty folders and executable files the archive has the old version, which older programs read.
mkdir plain && echo x > plain/x
"$KVTOOL" compress -q --from opaque plain --level compat
"$PYTHON" -c 'd = open("plain.kvz", "rb").read(); print(d[24 + 32 + 16 + 8] & 4)'
mkfifo tree/pipe
"$KVTOOL" compress -q -f --from opaque tree || echo "exit $?"
