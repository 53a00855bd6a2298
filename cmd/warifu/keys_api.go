package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

func newKeysCreate(sys *system) *cobra.Command {
	var c teamCommand
	want := &warifuv1.CreateKeyRequest{}
	var expires string
	cmd := &cobra.Command{
		Use: "create", Short: "Make an API key on a server; its text is shown once", Args: cobra.NoArgs,
		Long: `Makes an API key and prints its text, once: it is stored nowhere. Without a tenant,
a key of the platform makes another key of the platform.`,
	}
	c.bind(sys, cmd)
	cmd.Flags().StringSliceVar(&want.Scopes, "scope", nil, "what the key may do (required): claim, read, resolve, admin:tenant, admin:platform")
	cmd.Flags().StringVar(&want.ConsumerPrefix, "consumer-prefix", "", "only consumers whose names begin so")
	cmd.Flags().StringVar(&expires, "expires", "", "when it ends: an instant such as 2027-01-31T00:00:00Z, or a time from now such as 90d")
	cmd.Flags().StringVar(&want.Note, "note", "", "a note for people: whose key it is")
	cmd.Flags().StringVar(&want.Environment, "env", "", "a word in the key that tells people where it belongs: 1-16 of [a-z0-9]; default: live")
	_ = cmd.RegisterFlagCompletionFunc("scope", cobra.FixedCompletions(
		[]string{"claim", "read", "resolve", "admin:tenant", "admin:platform"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = func(*cobra.Command, []string) (err error) {
		if len(want.GetScopes()) == 0 {
			return usageError("--scope is missing: claim, read, resolve, admin:tenant or admin:platform")
		}
		if want.ExpiresAt, err = instantOrLater(sys.now(), "--expires", expires); err != nil {
			return err
		}
		if err := c.prepare(); err != nil {
			return err
		}
		want.Tenant = c.client.actsFor()
		var made *warifuv1.CreateKeyResponse
		err = c.change.make(cmd.Context(), "", false, func(ctx context.Context, dryRun bool) (*warifuv1.Consequence, error) {
			want.Change = c.change.change(0, dryRun)
			made, err = call(ctx, &c.client, c.api.CreateKey, want)
			return nil, err
		})
		if err != nil {
			return err
		}
		return printMessage(sys, &c.out, made, func(w io.Writer) { describeSecret(w, made.GetKey(), made.GetSecret()) })
	}
	return cmd
}

// instantOrLater reads an instant, or a length of time from now; nil where
// nothing was given.
func instantOrLater(now time.Time, flag, text string) (*timestamppb.Timestamp, error) {
	if text == "" {
		return nil, nil //nolint:nilnil // documented: nothing was given
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return timestamppb.New(at), nil
	}
	length, err := parseDuration(text)
	if err != nil || length < 0 {
		return nil, usageError("%s %q: it is an instant such as 2027-01-31T00:00:00Z or a length of time such as 90d", flag, text)
	}
	return timestamppb.New(now.Add(length)), nil
}

func describeSecret(w io.Writer, k *warifuv1.Key, secret string) {
	if secret == "" {
		row(w, "# nothing was made: a dry run")
	} else {
		row(w, "# for the client, shown once and stored nowhere")
		row(w, "WARIFU_API_KEY="+secret)
	}
	row(w, "")
	describeKey(w, k)
}

func describeKey(w io.Writer, k *warifuv1.Key) {
	row(w, "id", orDash(plain(k.GetId())))
	row(w, "scopes", plain(strings.Join(k.GetScopes(), ", ")))
	row(w, "consumer prefix", orDash(plain(k.GetConsumerPrefix())))
	row(w, "expires", instant(k.GetExpiresAt()))
	row(w, "revoked", instant(k.GetRevokedAt()))
	row(w, "note", orDash(plain(k.GetNote())))
	row(w, "version", number(k.GetVersion()))
}

func newKeysList(sys *system) *cobra.Command {
	var c teamCommand
	var list listFlags
	cmd := &cobra.Command{Use: "list", Short: "List API keys by ID, revoked and expired ones included", Args: cobra.NoArgs}
	c.bindRead(sys, cmd)
	list.bind(cmd, 0)
	cmd.RunE = func(*cobra.Command, []string) (err error) {
		if c.api, err = ready(&c.out, &list, c.client.team); err != nil {
			return err
		}
		return printList(sys, &list, &c.out, c.keyPages(cmd.Context()), (*warifuv1.ListKeysResponse).GetKeys,
			[]string{"ID", "STATE", "SCOPES", "PREFIX", "EXPIRES", "LAST USED", "NOTE"}, func(k *warifuv1.Key) []string {
				return []string{
					plain(k.GetId()), keyState(k, sys.now()), strings.Join(k.GetScopes(), ","), orDash(plain(k.GetConsumerPrefix())),
					instant(k.GetExpiresAt()), instant(k.GetLastUsedAt()), orDash(plain(k.GetNote())),
				}
			})
	}
	return cmd
}

func (c *teamCommand) keyPages(ctx context.Context) func(uint32, string) (*warifuv1.ListKeysResponse, error) {
	return func(size uint32, token string) (*warifuv1.ListKeysResponse, error) {
		return call(ctx, &c.client, c.api.ListKeys, &warifuv1.ListKeysRequest{Tenant: c.client.actsFor(), PageSize: size, PageToken: token})
	}
}

func keyState(k *warifuv1.Key, now time.Time) string {
	switch {
	case k.GetRevokedAt() != nil:
		return "revoked"
	case k.GetExpiresAt() != nil && !now.Before(k.GetExpiresAt().AsTime()):
		return "expired"
	}
	return "active"
}

// keyVersion is the version of a key as it is now. It says whose key that is.
func (c *teamCommand) keyVersion(ctx context.Context, id string) (int64, error) {
	found, _, err := collect(0, c.keyPages(ctx), (*warifuv1.ListKeysResponse).GetKeys)
	if err != nil {
		return 0, err
	}
	for _, k := range found {
		if k.GetId() == id {
			row(c.sys.stderr, fmt.Sprintf("key %s (%s), %s, last used %s", plain(id), orDash(plain(k.GetNote())),
				strings.Join(k.GetScopes(), ", "), instant(k.GetLastUsedAt())))
			return k.GetVersion(), nil
		}
	}
	return 0, exit(exitNotFound, fmt.Errorf("no key %s; 'warifu keys list' shows all", plain(id)))
}

// checkKeyID catches a whole key in place of its ID, before it gets into logs.
func checkKeyID(id string) error {
	if strings.HasPrefix(id, "wf_") {
		return exit(exitUsage, errors.New("that is a key, not its ID: the ID is the third part of it, between underscores"))
	}
	return nil
}

func newKeysRotate(sys *system) *cobra.Command {
	var c teamCommand
	var overlap, env string
	cmd := &cobra.Command{
		Use: "rotate ID", Short: "Make a key with the same rights, and let the old one expire after an overlap", Args: cobra.ExactArgs(1),
		ValidArgsFunction: c.client.completeFirst(c.client.completeKeys),
		Long: `Makes a key with the same rights, prints its text, once, and lets the old one
expire after --overlap. Hand out the new one within that time: no call fails.`,
	}
	c.bind(sys, cmd)
	c.change.bindVersion(cmd)
	cmd.Flags().StringVar(&overlap, "overlap", "24h", "how long the old key works on: 0s-90d")
	cmd.Flags().StringVar(&env, "env", "", "a word in the key that tells people where it belongs; default: live")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		length, err := parseDuration(overlap)
		if err != nil || length < 0 {
			return usageError("--overlap %q: it is a length of time such as 24h", overlap)
		}
		if err := checkKeyID(args[0]); err != nil {
			return err
		}
		if err := c.prepare(); err != nil {
			return err
		}
		version, err := c.change.version(func() (int64, error) { return c.keyVersion(cmd.Context(), args[0]) })
		if err != nil {
			return err
		}
		var made *warifuv1.RotateKeyResponse
		err = c.change.make(cmd.Context(), args[0], length == 0, func(ctx context.Context, dryRun bool) (*warifuv1.Consequence, error) {
			made, err = call(ctx, &c.client, c.api.RotateKey, &warifuv1.RotateKeyRequest{
				Tenant: c.client.actsFor(), Id: args[0], Overlap: durationpb.New(length), Environment: env, Change: c.change.change(version, dryRun),
			})
			return nil, err
		})
		if err != nil {
			return err
		}
		return printMessage(sys, &c.out, made, func(w io.Writer) {
			describeSecret(w, made.GetKey(), made.GetSecret())
			row(w, "old key", fmt.Sprintf("%s, until %s", plain(made.GetOld().GetId()), instant(made.GetOld().GetExpiresAt())))
		})
	}
	return cmd
}

func newKeysRevoke(sys *system) *cobra.Command {
	var c teamCommand
	cmd := &cobra.Command{
		Use: "revoke ID", Short: "End a key on every server within 5 s", Args: cobra.ExactArgs(1),
		ValidArgsFunction: c.client.completeFirst(c.client.completeKeys),
	}
	c.bind(sys, cmd)
	c.change.bindVersion(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if err := checkKeyID(args[0]); err != nil {
			return err
		}
		if err := c.prepare(); err != nil {
			return err
		}
		version, err := c.change.version(func() (int64, error) { return c.keyVersion(cmd.Context(), args[0]) })
		if err != nil {
			return err
		}
		var now *warifuv1.RevokeKeyResponse
		err = c.change.make(cmd.Context(), args[0], true, func(ctx context.Context, dryRun bool) (*warifuv1.Consequence, error) {
			now, err = call(ctx, &c.client, c.api.RevokeKey, &warifuv1.RevokeKeyRequest{
				Tenant: c.client.actsFor(), Id: args[0], Change: c.change.change(version, dryRun),
			})
			return nil, err
		})
		if err != nil {
			return err
		}
		return printMessage(sys, &c.out, now.GetKey(), func(w io.Writer) { describeKey(w, now.GetKey()) })
	}
	return cmd
}
