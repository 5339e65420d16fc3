"$KVTOOL" inspect --jsn x
