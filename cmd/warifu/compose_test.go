package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// composed is what a compose file says of a service, as far as this test goes.
type composed struct {
	Image     string
	Command   any                                   // text for a shell, or words
	DependsOn map[string]struct{ Condition string } `yaml:"depends_on"`
	Configs   []struct{ Source, Target string }
	Volumes   []string
}

// TestComposeFiles: no container engine is at hand, so what can be known without
// one is checked: that the file reads, that what it names is there, and that
// Warifu has the commands and flags it is started with.
func TestComposeFiles(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../deploy/compose/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	files = slices.DeleteFunc(files, func(f string) bool { return strings.Contains(filepath.Base(f), "warifu") }) // the server's own
	if len(files) == 0 {
		t.Fatal("there is no compose file")
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var all struct {
				Services map[string]composed
				Configs  map[string]any
				Volumes  map[string]any
			}
			if err := yaml.Unmarshal(text, &all); err != nil {
				t.Fatal(err)
			}
			for name, s := range all.Services {
				for on := range s.DependsOn {
					if _, ok := all.Services[on]; !ok {
						t.Errorf("%s depends on %s, which is not there", name, on)
					}
				}
				for _, c := range s.Configs {
					if _, ok := all.Configs[c.Source]; !ok {
						t.Errorf("%s has the configuration %s, which is not there", name, c.Source)
					}
				}
				for _, v := range s.Volumes {
					volume, _, _ := strings.Cut(v, ":")
					if _, ok := all.Volumes[volume]; !ok {
						t.Errorf("%s has the volume %s, which is not there", name, volume)
					}
				}
				if s.Image == "warifu:local" {
					commandExists(t, name, s.Command)
				}
			}
		})
	}
}

// commandExists demands that Warifu takes these words.
func commandExists(t *testing.T, service string, words any) {
	t.Helper()
	var args []string
	for _, w := range words.([]any) {
		args = append(args, w.(string))
	}
	begun := false
	cmd, rest, err := newRoot(&system{}, &begun).Find(args)
	if err != nil || !cmd.Runnable() || cmd.Parent() == nil {
		t.Fatalf("%s: no command %q: %v", service, args, err)
	}
	if err := cmd.ParseFlags(rest); err != nil {
		t.Errorf("%s: %v", service, err)
	}
	if store := cmd.Flag("store"); store != nil && store.Changed {
		if _, err := parseTarget(store.Value.String()); err != nil {
			t.Errorf("%s: --store: %v", service, err)
		}
	}
	if err := cmd.Args(cmd, cmd.Flags().Args()); err != nil {
		t.Errorf("%s: %v", service, err)
	}
}
