# Lists every library with the version found at configuration, and the texts of the licences.
"$KVTOOL" --version --licenses > said
sed -n 's/^Comment: \([A-Za-z0-9/]*\) [0-9][0-9.]*,.*/\1/p' said
grep -c 'THE SOFTWARE IS PROVIDED "AS IS"' said
grep -c 'END OF TERMS AND CONDITIONS' said
