package main

import (
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// buildVersion is set by the Makefile; a binary made by `go install` knows its
// module version instead.
var buildVersion string

type versionInfo struct {
	Version         string `json:"version"`
	Commit          string `json:"commit,omitempty"`
	Go              string `json:"go"`
	Platform        string `json:"platform"`
	ProtocolVersion int    `json:"protocolVersion"`
}

// protocolVersion is what every reply of the API carries.
const protocolVersion = 1

func readVersion() versionInfo {
	v := versionInfo{
		Version: buildVersion, Go: runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH, ProtocolVersion: protocolVersion,
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if v.Version == "" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			v.Commit = s.Value
		}
	}
	return v
}

func newVersion(sys *system) *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use: "version", Short: "Print the version", GroupID: groupTools, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := out.validate(); err != nil {
				return err
			}
			v := readVersion()
			return out.write(sys.stdout, v, func(w io.Writer) {
				row(w, "warifu", v.Version)
				if v.Commit != "" {
					row(w, "commit", v.Commit)
				}
				row(w, "go", v.Go)
				row(w, "platform", v.Platform)
			})
		},
	}
	out.bind(cmd)
	return cmd
}
