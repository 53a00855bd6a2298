package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	engine "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// freeBytesWarn is below what an operator has time to react; the store itself
// refuses claims later than that.
const freeBytesWarn = 2 << 30

// examineData looks at a store's folder from outside and changes nothing.
func examineData(dir string) []finding {
	info, err := os.Stat(dir)
	if err != nil {
		return []finding{{"data", statusFail, err.Error()}}
	}
	if !info.IsDir() {
		return []finding{{"data", statusFail, dir + " is not a folder"}}
	}
	findings := []finding{examineStore(dir)}
	if findings[0].Status == statusOK {
		findings = append(findings, examineFormat(dir), examineLock(dir))
	}
	return append(findings, examineMode(dir, info), examineSpace(dir))
}

func examineStore(dir string) finding {
	_, err := os.Stat(filepath.Join(dir, "STORE"))
	if errors.Is(err, fs.ErrNotExist) {
		return finding{"store", statusWarn, dir + " holds no store yet; starting a server makes one"}
	}
	if err != nil {
		return finding{"store", statusFail, err.Error()}
	}
	return finding{"store", statusOK, dir}
}

func examineFormat(dir string) finding {
	desc, err := engine.Peek(filepath.Join(dir, "db"), vfs.Default)
	if err != nil {
		return finding{"format", statusFail, err.Error()}
	}
	if !desc.Exists {
		return finding{"format", statusFail, "the engine's files are missing; restore the store from a backup"}
	}
	return finding{"format", statusOK, fmt.Sprintf("engine format %s", desc.FormatMajorVersion)}
}

// examineLock tells whether a server has the folder now; either is fine.
func examineLock(dir string) finding {
	lock, err := engine.LockDirectory(dir, vfs.Default)
	if err != nil {
		return finding{"lock", statusOK, "held: a server is running on this folder"}
	}
	if err := lock.Close(); err != nil {
		return finding{"lock", statusWarn, err.Error()}
	}
	return finding{"lock", statusOK, "free: no server is running on this folder"}
}

func examineMode(dir string, info fs.FileInfo) finding {
	if info.Mode().Perm()&0o077 != 0 {
		return finding{"mode", statusWarn, fmt.Sprintf("others can look into %s (mode %04o); chmod 700 it", dir, info.Mode().Perm())}
	}
	return finding{"mode", statusOK, fmt.Sprintf("%04o", info.Mode().Perm())}
}

func examineSpace(dir string) finding {
	usage, err := vfs.Default.GetDiskUsage(dir)
	if err != nil {
		return finding{"space", statusFail, err.Error()}
	}
	detail := fmt.Sprintf("%.1f GiB free of %.1f", gib(usage.AvailBytes), gib(usage.TotalBytes))
	if usage.AvailBytes < freeBytesWarn {
		return finding{"space", statusWarn, detail + "; new claims are refused when it runs out"}
	}
	return finding{"space", statusOK, detail}
}

func gib(bytes uint64) float64 { return float64(bytes) / (1 << 30) }
