package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// ticksPerSecond is the unit of /proc/<pid>/stat on every Linux that runs Go.
const ticksPerSecond = 100

// CPUSeconds is the user and system time of all threads of a process, to a
// hundredth of a second. Linux only.
func CPUSeconds(pid int) (float64, error) {
	s, err := readStat(strconv.Itoa(pid))
	return s.own, err
}

// FamilyCPUSeconds is CPUSeconds of a process with all children that it has and
// has had: of a server that works in a process for each connection. Children of
// children count once they have ended.
func FamilyCPUSeconds(pid int) (float64, error) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, fmt.Errorf("CPU time: %w", err)
	}
	total := 0.0
	for _, file := range files {
		s, err := readStat(filepath.Base(filepath.Dir(file)))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errGone) {
			continue
		}
		if err != nil {
			return 0, err
		}
		if s.parent == pid {
			total += s.own + s.children
		}
	}
	// Last: the time of a child that ends meanwhile may count twice, and is not
	// lost.
	s, err := readStat(strconv.Itoa(pid))
	return total + s.own + s.children, err
}

// stat is what is read of /proc/<pid>/stat.
type stat struct {
	parent        int
	own, children float64 // seconds; of the children that have ended
}

// errGone: a process ended between the opening of its file and the reading.
var errGone = errors.New("the process has ended")

func readStat(pid string) (stat, error) {
	text, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		if _, gone := os.Stat("/proc/" + pid); gone != nil {
			err = errors.Join(errGone, gone)
		}
		return stat{}, fmt.Errorf("CPU time: %w", err)
	}
	return parseStat(text)
}

// parseStat reads fields 4 and 14 to 17. The second is a name in parentheses
// that may hold anything, so counting begins behind its end.
func parseStat(text []byte) (stat, error) {
	end := bytes.LastIndexByte(text, ')')
	fields := bytes.Fields(text[end+1:])
	if end < 0 || len(fields) < 15 {
		return stat{}, fmt.Errorf("CPU time: cannot read %q", text)
	}
	var n [5]int
	for i, at := range []int{1, 11, 12, 13, 14} {
		var err error
		if n[i], err = strconv.Atoi(string(fields[at])); err != nil {
			return stat{}, fmt.Errorf("CPU time: %w", err)
		}
	}
	return stat{parent: n[0], own: float64(n[1]+n[2]) / ticksPerSecond, children: float64(n[3]+n[4]) / ticksPerSecond}, nil
}

// Servers count as quiet when they used less than quietTicks of CPU time in
// quietLook. settleMax bounds the wait.
const (
	quietLook  = 200 * time.Millisecond
	quietTicks = 2.0 / ticksPerSecond
	settleMax  = 3 * time.Second
)

// Settle waits until what cpu counts is quiet and returns the CPU seconds that
// were spent until then.
func Settle(ctx context.Context, cpu func() (float64, error)) (float64, error) {
	first, err := cpu()
	if err != nil {
		return 0, err
	}
	ticker := time.NewTicker(quietLook)
	defer ticker.Stop()
	last := first
	for range settleMax / quietLook {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-ticker.C:
		}
		now, err := cpu()
		if err != nil {
			return 0, err
		}
		if now-last < quietTicks {
			return now - first, nil
		}
		last = now
	}
	return last - first, nil
}
