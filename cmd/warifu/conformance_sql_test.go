package main

import (
	"context"
	"strings"
	"syscall"
	"testing"

	"github.com/warifu/warifu/storage/sqlstore"
)

func TestConformanceOnDatabase(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.patience *= 5 // it opens a store more than a hundred times
	url := database(t)
	f.warifu("conformance", "--store", url).want(t, exitSchema, "", "make them with --migrate")
	if n := queryInt(t, url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"); n != 0 {
		t.Fatalf("%d tables were made without --migrate", n)
	}
	f.write("store.url", url)
	got := f.warifu("conformance", "--store-file", "store.url", "--migrate")
	got.want(t, 0, "run against postgres://warifu:xxxxx@", "")
	got.want(t, 0, ", postgres 15.", "")
	got.wantNoPassword(t)
	if passed := strings.Count(got.stdout, "\nPASS "); passed < 50 || strings.Contains(got.stdout, "FAIL") || strings.Contains(got.stdout, "EXCEPT") {
		t.Errorf("%d passed: %s", passed, got.stdout)
	}
	for _, table := range tables {
		if n := queryInt(t, url, "SELECT count(*) FROM "+table); n != 0 {
			t.Errorf("it left %d rows in %s", n, table)
		}
	}
}

// TestConformanceRefusesClaims: what it would delete is somebody's.
func TestConformanceRefusesClaims(t *testing.T) {
	t.Parallel()
	for _, table := range tables {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			f := newFolder(t)
			url := f.migratedDatabase()
			want := 1
			if table == "claims" {
				want = grow(t, url)
			} else {
				execSQL(t, url, "INSERT INTO claim_results VALUES (0, 1, 'c', 'e', 1, '')")
			}
			f.warifu("conformance", "--store", url, "--migrate").want(t, exitUsage, "", "table "+table+" is not empty")
			if n := queryInt(t, url, "SELECT count(*) FROM "+table); n != want {
				t.Errorf("%d rows of %s are left", n, table)
			}
		})
	}
}

// TestConformanceInterrupted: it empties the database before it ends.
func TestConformanceInterrupted(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	url := f.migratedDatabase()
	p := f.start("conformance", "--store", url)
	p.until(p.stdout, "PASS ")
	p.signal(syscall.SIGINT)
	if code := p.wait(); code == 0 {
		t.Fatalf("exit code 0: %s", p.stdout)
	}
	for _, table := range tables {
		if n := queryInt(t, url, "SELECT count(*) FROM "+table); n != 0 {
			t.Errorf("it left %d rows in %s", n, table)
		}
	}
	if !strings.Contains(p.stdout.String(), "run against ") {
		t.Errorf("it does not say what it ran against: %s", p.stdout)
	}
}

// TestConformanceEmptiesWhenEnded: a context that has ended does not keep it
// from clearing up.
func TestConformanceEmptiesWhenEnded(t *testing.T) {
	t.Parallel()
	url := newFolder(t).migratedDatabase()
	grow(t, url)
	pool, err := sqlstore.NewMaintenancePool(t.Context(), sqlstore.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	s := &scratch{pool: pool}
	if err := s.empty(ended); err != nil {
		t.Fatal(err)
	}
	if n := queryInt(t, url, "SELECT count(*) FROM claims"); n != 0 {
		t.Errorf("%d claims are left", n)
	}
}
