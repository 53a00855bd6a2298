package pebble

// front is what has been written and is not in the engine yet: the memtable
// that takes writes and, oldest first, those on their way. Store.mu guards it.
type front struct {
	active *memtable
	frozen []*memtable
}

// get returns the newest operation on key that the engine may not have.
func (f *front) get(hash uint64, key []byte) (op, bool) {
	if o, ok := f.active.get(hash, key); ok {
		return o, true
	}
	for i := len(f.frozen) - 1; i >= 0; i-- {
		if o, ok := f.frozen[i].get(hash, key); ok {
			return o, true
		}
	}
	return op{}, false
}

// dueMin is the least bucket that the engine's expiry index does not know yet.
func (f *front) dueMin() int64 {
	least := f.active.dueMin
	for _, m := range f.frozen {
		least = min(least, m.dueMin)
	}
	return least
}

// snapshot returns the chunks of all memtables, oldest first, as they are now.
func (f *front) snapshot() (chunks [][]byte) {
	for _, m := range f.frozen {
		chunks = append(chunks, m.chunks...)
	}
	return append(chunks, f.active.chunks...)
}
