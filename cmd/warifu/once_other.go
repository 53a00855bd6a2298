//go:build !linux

package main

import "os/exec"

// dieWithParent does nothing here: only Linux can tie a command's life to that
// of once. When once is killed, the command goes on until it ends by itself.
func dieWithParent(*exec.Cmd) {}
