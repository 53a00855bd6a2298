package pgtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// versionMin is the oldest PostgreSQL that the project supports.
const versionMin = 15

// versionWait bounds the question which version a program is.
const versionWait = 10 * time.Second

// installed is where Debian puts the programs of each version; they are not in
// PATH there.
const installed = "/usr/lib/postgresql/*/bin"

// accounts are who root lends the server to: PostgreSQL refuses to run as root.
var accounts = []string{"postgres", "nobody"}

// errMissing says what to do about it.
var errMissing = fmt.Errorf("no PostgreSQL %d or newer: run .ci/install postgres, or install the Debian package postgresql",
	versionMin)

// programs are the two that a server needs, of one version.
type programs struct {
	postgres, initdb string
	version          int // 15
}

// findPrograms returns the newest in the folders of pattern and in the one that
// lookPath finds postgres in.
func findPrograms(ctx context.Context, pattern string, lookPath func(string) (string, error)) (programs, error) {
	folders, err := filepath.Glob(pattern)
	if err != nil {
		return programs{}, fmt.Errorf("find PostgreSQL: %w", err)
	}
	if inPath, err := lookPath("postgres"); err == nil {
		// Elsewhere PATH often has links; initdb is beside what they lead to.
		if inPath, err = filepath.EvalSymlinks(inPath); err == nil {
			folders = append(folders, filepath.Dir(inPath))
		}
	}
	var all []programs
	for _, folder := range folders {
		p := programs{postgres: filepath.Join(folder, "postgres"), initdb: filepath.Join(folder, "initdb")}
		if p.version, err = version(ctx, p); err == nil && p.version >= versionMin {
			all = append(all, p)
		}
	}
	if len(all) == 0 {
		return programs{}, errMissing
	}
	return slices.MaxFunc(all, func(a, b programs) int { return cmp.Compare(a.version, b.version) }), nil
}

var versionLine = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// version is the major one, and an error when one of the two is not there.
func version(ctx context.Context, p programs) (int, error) {
	if _, err := exec.LookPath(p.initdb); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, versionWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.postgres, "--version") //nolint:gosec // G204: found above, in folders of programs
	cmd.Env = environment()
	said, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("%s --version: %w", p.postgres, err)
	}
	match := versionLine.FindSubmatch(said)
	if match == nil {
		return 0, fmt.Errorf("%s --version: cannot read %q", p.postgres, said)
	}
	return strconv.Atoi(string(match[1]))
}

// environment is all that a program of ours gets: no setting of the caller
// (PGDATA, PGPORT, a language for messages) changes what a test sees.
func environment() []string {
	return []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LC_ALL=" + systemLocale, "TZ=UTC"}
}

// account is who runs the server.
type account struct {
	name       string
	credential *syscall.Credential // nil: who runs this process
}

// serverAccount is the first of names that exists when euid is root's, and
// this process's own otherwise.
func serverAccount(euid int, names []string) (account, error) {
	if euid != 0 {
		return account{}, nil
	}
	for _, name := range names {
		u, err := user.Lookup(name)
		if errors.As(err, new(user.UnknownUserError)) {
			continue
		}
		if err != nil {
			return account{}, fmt.Errorf("look up user %s: %w", name, err)
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return account{}, fmt.Errorf("user %s: %w", name, err)
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return account{}, fmt.Errorf("user %s: %w", name, err)
		}
		return account{name, &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
	}
	return account{}, fmt.Errorf("PostgreSQL does not run as root, and there is none of the users %q", names)
}

// own gives a file to the account.
func (a account) own(path string) error {
	if a.credential == nil {
		return nil
	}
	return os.Chown(path, int(a.credential.Uid), int(a.credential.Gid))
}

// command is a program that the account runs in folder dir. It is the leader
// of a session: what a terminal or a test runner sends to this process's group
// does not reach it.
func (a account) command(ctx context.Context, dir, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Env = dir, environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: a.credential}
	return cmd
}

// mustEnter is an error when the account cannot get into dir, which would come
// out of exec as a program that may not be run.
func (a account) mustEnter(ctx context.Context, dir string) error {
	if a.credential == nil {
		return nil
	}
	if err := a.command(ctx, "/", "/bin/sh", "-c", `cd "$1"`, "sh", dir).Run(); err != nil {
		return fmt.Errorf("user %s, who runs the server, cannot enter %s (%w): choose another Config.Dir", a.name, dir, err)
	}
	return nil
}
