package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"io"

	"github.com/spf13/cobra"
)

const (
	// hashKeyVariable is the variable of the server's setting of the same name.
	hashKeyVariable = "WARIFU_LOG_HASH_KEY_FILE"
	// hashKeyBytesMin: a key that can be guessed lets anybody who reads a log try
	// event IDs.
	hashKeyBytesMin = 16
	// hashBytes is how much of the hash logs show.
	hashBytes = 8
)

// hashedEvent is what `warifu claims hash` prints.
type hashedEvent struct {
	EventID string `json:"eventId"`
	Hash    string `json:"hash"`
}

func newClaimsHash(sys *system) *cobra.Command {
	var out output
	var keyFile string
	cmd := &cobra.Command{
		Use: "hash EVENT_ID", Short: "Print the hash under which logs show an event", Args: cobra.ExactArgs(1),
		Long: `Prints the hash under which the server's logs show an event: logs never hold event
IDs. It needs the key that the server has (log_hash_key_file); a server without
one draws a key at its start, and its hashes lead nowhere.`,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	out.bind(cmd)
	cmd.Flags().StringVar(&keyFile, "key-file", "", "file with the key ("+hashKeyVariable+")")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if err := out.validate(); err != nil {
			return err
		}
		if keyFile == "" {
			keyFile = sys.env(hashKeyVariable)
		}
		if keyFile == "" {
			return usageError("--key-file is missing: the file that the server's log_hash_key_file names")
		}
		key, err := readSecretFile(keyFile)
		if err != nil {
			return exit(exitUsage, err)
		}
		if len(key) < hashKeyBytesMin {
			return usageError("--key-file: %s has %d bytes; a key has %d or more", keyFile, len(key), hashKeyBytesMin)
		}
		shown := hashedEvent{EventID: args[0], Hash: eventHash([]byte(key), args[0])}
		return out.write(sys.stdout, shown, func(w io.Writer) { row(w, shown.Hash) })
	}
	return cmd
}

// eventHash is what logs show in place of an event ID.
func eventHash(key []byte, eventID string) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(eventID))
	return hex.EncodeToString(mac.Sum(nil)[:hashBytes])
}
