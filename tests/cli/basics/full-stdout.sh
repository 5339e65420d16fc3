# A full disk behind stdout is an I/O failure; a reader that closes early is not.
[ -e /dev/full ] || exit 0
"$KVTOOL" targets > /dev/full && exit 9 || [ $? = 4 ]
"$KVTOOL" targets | head -1 > /dev/null
