// Package warifu is the client of Warifu, which says who may act on an event,
// once.
//
// [Client.Do] is the whole of it for most programs: it claims the event, runs a
// handler while it keeps the lease alive, and stores what the handler returned,
// which every later delivery of the same event gets instead of a second run.
// [Client.Claim], [Client.Complete], [Client.Extend] and [Client.Release] are
// the parts it is made of; [Client.Record] claims and completes in one trip.
//
// # What is promised, and what is not
//
// At most one attempt holds a live lease of an event, and once a completion is
// acknowledged every later claim is answered with it, as long as the event is
// remembered. A lease cannot stop a worker that was paused from acting late:
// pass [Grant.Fence] to the resource and let it refuse smaller fences, make the
// effect idempotent, or write it in the transaction that notes the event.
//
// # Errors
//
// Decisions are data. Errors are an [*Error]; its sentinels say what to do.
// Being refused and not being able to ask are different errors, and after
// either [Error.NotApplied] says whether anything may have been changed. Calls
// without an answer are sent again by the client, with the same attempt ID,
// which is safe by construction.
//
// # Concurrency
//
// A Client is shared. Concurrent calls travel together in few requests, each
// with an answer of its own; a lone call goes out at once. A caller whose
// context ends leaves at once. Close waits for what is under way.
//
// Package warifutest runs the real server inside a test, with a clock that only
// the test moves.
package warifu
