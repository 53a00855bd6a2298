package overload

// Class says what it costs to refuse a call. Higher classes get free slots
// first. The zero value is the lowest: a procedure that names none is shed
// before all others.
type Class uint8

// The classes, lowest first. Sweeps are outside: they pace themselves.
const (
	Console Class = iota // lists and verbs of people: they can ask again
	Read                 // look-ups and policies: nothing is begun by them
	Claim                // begins work: refused, the work is done later
	Finish               // ends or prolongs granted work: refused, it may be done twice
	// Classes is how many there are.
	Classes = iota
)

// String returns the class as a metric label.
func (c Class) String() string {
	switch c {
	case Console:
		return "console"
	case Read:
		return "read"
	case Claim:
		return "claim"
	case Finish:
		return "finish"
	}
	return "unknown"
}

// below is what is left of n for all classes but Finish, at least 1.
func below(n int) int { return max(1, n-n/reserve) }
