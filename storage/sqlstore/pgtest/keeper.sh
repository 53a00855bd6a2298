# Ends a server and removes its folder as soon as standard input ends, which it
# does when the process at its other end does, however that came about.
#
#   $1 the data folder   $2 the program postgres   $3 the program initdb
#
# A server's processes are those of its programs that work in its data folder.
# That also finds those that lost their parent, and those of an initdb.
data=$1
folder=${data%/*}

# signal sends one to all of them, and fails when there are none.
signal() {
  found=1
  for process in /proc/[0-9]*; do
    if [ "$process/cwd" -ef "$data" ] && { [ "$process/exe" -ef "$2" ] || [ "$process/exe" -ef "$3" ]; }; then
      kill -s "$1" "${process#/proc/}" && found=0
    fi
  done
  return $found
}

# Nobody writes: this returns at the end.
read -r _

# QUIT has a server give its shared memory back, which KILL leaves behind.
# Those that are stopped have to go on to notice either.
for how in QUIT KILL; do
  signal "$how" "$2" "$3"
  polls=200
  while [ "$polls" -gt 0 ] && signal CONT "$2" "$3"; do
    polls=$((polls - 1))
    sleep 0.05
  done
done
rm -rf "$folder"
