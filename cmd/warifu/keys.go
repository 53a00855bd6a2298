package main

import (
	"encoding/hex"
	"io"

	"github.com/spf13/cobra"

	"github.com/warifu/warifu/server/tenant"
)

type newKey struct {
	Key          string `json:"key"`
	ID           string `json:"id"`
	SecretSHA256 string `json:"secretSha256"`
}

func newKeys(sys *system) *cobra.Command {
	cmd := &cobra.Command{
		Use: "keys", Short: "Make, rotate and revoke API keys", GroupID: groupAdmin, Args: cobra.NoArgs, RunE: needsCommand,
		Long: `'bootstrap' makes the first key of the platform, in the store itself. 'create',
'list', 'rotate' and 'revoke' ask a server. 'new' makes a key for a configuration
file and asks nobody.`,
	}
	cmd.AddCommand(newKeysBootstrap(sys), newKeysCreate(sys), newKeysList(sys), newKeysRotate(sys), newKeysRevoke(sys), newKeysNew(sys))
	return cmd
}

func newKeysNew(sys *system) *cobra.Command {
	var out output
	var env string
	cmd := &cobra.Command{
		Use: "new", Short: "Make an API key offline, and the lines that make a server accept it", Args: cobra.NoArgs,
		Long: `Makes an API key. It is printed once and stored nowhere: give 'key' to the
client and put 'id' and 'secret_sha256' into the server's configuration.`,
		RunE: func(*cobra.Command, []string) error {
			if err := out.validate(); err != nil {
				return err
			}
			text, key := tenant.NewKey(env)
			made := newKey{Key: text, ID: key.ID, SecretSHA256: hex.EncodeToString(key.SecretSHA256[:])}
			return out.write(sys.stdout, made, func(w io.Writer) {
				row(w, "# for the client, shown once")
				row(w, "WARIFU_API_KEY="+made.Key)
				row(w, "")
				row(w, "# for the server's configuration, under the tenant's keys")
				row(w, `- id: "`+made.ID+`"`)
				row(w, `  secret_sha256: "`+made.SecretSHA256+`"`)
			})
		},
	}
	cmd.Flags().StringVar(&env, "env", "live", "a word in the key that tells people where it belongs: 1-16 of [a-z0-9]")
	out.bind(cmd)
	return cmd
}

// needsCommand is what a command does that only has sub-commands.
func needsCommand(cmd *cobra.Command, _ []string) error {
	return usageError("'%s' needs a command; see --help", cmd.CommandPath())
}
