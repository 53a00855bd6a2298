// Package reliability holds no product code. Its tests start the program as
// users do, kill it, stop its clients, lose its replies, and check every
// answer against the contract:
//
//   - crash_test.go: the table of what happens when a worker dies;
//   - pause_test.go: a worker that sleeps through its lease;
//   - kill_test.go: kill -9 of the server, again and again, on one disk;
//   - simultaneous_test.go, lostreply_test.go: one grant, whoever asks how often;
//   - linear_test.go, clone_test.go: whole histories, judged by a checker.
//
// What the contract says stands once, in model_test.go, written anew from the
// document and not shared with the product.
//
// WARIFU_SOAK=1 runs them for longer.
package reliability
