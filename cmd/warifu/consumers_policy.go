package main

import (
	"cmp"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

// declaredPolicy is a consumer's policy as people write it: in files with the
// names of the server's configuration, as flags with dashes in them. Lengths of
// time are text: "36h", "7d", "1d12h". What is left out is the default.
type declaredPolicy struct {
	OnLeaseLoss          string `yaml:"on_lease_loss"`
	OnUnavailable        string `yaml:"on_unavailable"`
	AcceptHoldFailOpen   bool   `yaml:"accept_hold_fail_open"`
	RedeliveryWindow     string `yaml:"redelivery_window"`
	Retention            string `yaml:"retention"`
	LeaseDefault         string `yaml:"lease_default"`
	LeaseMax             string `yaml:"lease_max"`
	HoldMax              string `yaml:"hold_max"`
	AttemptsMax          uint32 `yaml:"attempts_max"`
	ResultBytesMax       uint32 `yaml:"result_bytes_max"`
	DigestRequired       bool   `yaml:"digest_required"`
	AcceptNoCommonScheme bool   `yaml:"accept_no_common_scheme"`
}

// policyHelp says what each field means.
var policyHelp = map[string]string{
	"on_lease_loss":           "REGRANT: the next claim is granted; HOLD: it is in doubt until somebody decides",
	"on_unavailable":          "while the store cannot be asked: FAIL_CLOSED or FAIL_OPEN",
	"accept_hold_fail_open":   "accept HOLD together with FAIL_OPEN, which contradict each other",
	"redelivery_window":       "how long after the first delivery an event may come again (default 24h)",
	"retention":               "how long records are kept (default: twice the window)",
	"lease_default":           "how long an attempt has when it asks for nothing (default 30s)",
	"lease_max":               "the longest lease that an attempt may ask for (default 24h)",
	"hold_max":                "how long an attempt may hold an event with all its extensions (default 24h)",
	"attempts_max":            "attempts after which an event is in doubt; 0: no cap",
	"result_bytes_max":        "the largest result that is kept; 0: 256 KiB",
	"digest_required":         "refuse claims without a digest",
	"accept_no_common_scheme": "digests that share no scheme agree; otherwise they are a mismatch",
}

// bind adds a flag for every field.
func (p *declaredPolicy) bind(cmd *cobra.Command) {
	v := reflect.ValueOf(p).Elem()
	for i := range v.NumField() {
		name := v.Type().Field(i).Tag.Get("yaml")
		flag, help := strings.ReplaceAll(name, "_", "-"), policyHelp[name]
		switch into := v.Field(i).Addr().Interface().(type) {
		case *string:
			cmd.Flags().StringVar(into, flag, "", help)
		case *bool:
			cmd.Flags().BoolVar(into, flag, false, help)
		case *uint32:
			cmd.Flags().Uint32Var(into, flag, 0, help)
		}
	}
	for flag, words := range map[string][]string{"on-lease-loss": {"REGRANT", "HOLD"}, "on-unavailable": {"FAIL_CLOSED", "FAIL_OPEN"}} {
		// The only error is a flag that does not exist, and it was made above.
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	}
}

// keep fills in what no flag gave from what is stored.
func (p *declaredPolicy) keep(cmd *cobra.Command, stored *warifuv1.ConsumerPolicy) {
	from := reflect.ValueOf(declared(stored)).Elem()
	v := reflect.ValueOf(p).Elem()
	for i := range v.NumField() {
		if flag := strings.ReplaceAll(v.Type().Field(i).Tag.Get("yaml"), "_", "-"); !cmd.Flags().Changed(flag) {
			v.Field(i).Set(from.Field(i))
		}
	}
}

// message is the policy as the API has it: with both words in place.
func (p *declaredPolicy) message() (*warifuv1.ConsumerPolicy, error) {
	out := &warifuv1.ConsumerPolicy{
		AcceptHoldFailOpen: p.AcceptHoldFailOpen, AttemptsMax: p.AttemptsMax, ResultBytesMax: p.ResultBytesMax,
		DigestRequired: p.DigestRequired, AcceptNoCommonScheme: p.AcceptNoCommonScheme,
	}
	lost, known := warifuv1.OnLeaseLoss_value["ON_LEASE_LOSS_"+cmp.Or(p.OnLeaseLoss, "REGRANT")]
	if !known || lost == 0 {
		return nil, usageError("on_lease_loss: %q is not REGRANT or HOLD", p.OnLeaseLoss)
	}
	away, known := warifuv1.OnUnavailable_value["ON_UNAVAILABLE_"+cmp.Or(p.OnUnavailable, "FAIL_CLOSED")]
	if !known || away == 0 {
		return nil, usageError("on_unavailable: %q is not FAIL_CLOSED or FAIL_OPEN", p.OnUnavailable)
	}
	out.OnLeaseLoss, out.OnUnavailable = warifuv1.OnLeaseLoss(lost), warifuv1.OnUnavailable(away)
	for _, d := range []struct {
		name, text string
		into       **durationpb.Duration
	}{
		{"redelivery_window", p.RedeliveryWindow, &out.RedeliveryWindow}, {"retention", p.Retention, &out.Retention},
		{"lease_default", p.LeaseDefault, &out.LeaseDefault}, {"lease_max", p.LeaseMax, &out.LeaseMax}, {"hold_max", p.HoldMax, &out.HoldMax},
	} {
		if d.text == "" {
			continue
		}
		length, err := parseDuration(d.text)
		if err != nil {
			return nil, usageError("%s: %v", d.name, err)
		}
		if length != 0 {
			*d.into = durationpb.New(length)
		}
	}
	return out, nil
}

// declared is a policy of the API as people write it.
func declared(p *warifuv1.ConsumerPolicy) *declaredPolicy {
	length := func(d *durationpb.Duration) string {
		if d.AsDuration() == 0 {
			return ""
		}
		return lengthText(d.AsDuration())
	}
	out := &declaredPolicy{
		OnLeaseLoss: "REGRANT", OnUnavailable: "FAIL_CLOSED", AcceptHoldFailOpen: p.GetAcceptHoldFailOpen(),
		RedeliveryWindow: length(p.GetRedeliveryWindow()), Retention: length(p.GetRetention()), LeaseDefault: length(p.GetLeaseDefault()),
		LeaseMax: length(p.GetLeaseMax()), HoldMax: length(p.GetHoldMax()), AttemptsMax: p.GetAttemptsMax(), ResultBytesMax: p.GetResultBytesMax(),
		DigestRequired: p.GetDigestRequired(), AcceptNoCommonScheme: p.GetAcceptNoCommonScheme(),
	}
	if p.GetOnLeaseLoss() != warifuv1.OnLeaseLoss_ON_LEASE_LOSS_UNSPECIFIED {
		out.OnLeaseLoss = word(p.GetOnLeaseLoss(), "ON_LEASE_LOSS_")
	}
	if p.GetOnUnavailable() != warifuv1.OnUnavailable_ON_UNAVAILABLE_UNSPECIFIED {
		out.OnUnavailable = word(p.GetOnUnavailable(), "ON_UNAVAILABLE_")
	}
	return out
}

// lengthText writes a length of time so that parseDuration reads the same.
func lengthText(d time.Duration) string {
	const day = 24 * time.Hour
	text := ""
	if d >= 2*day {
		text = fmt.Sprintf("%dd", d/day)
		if d %= day; d == 0 {
			return text
		}
	}
	rest := d.String()
	if strings.HasSuffix(rest, "m0s") {
		rest = strings.TrimSuffix(rest, "0s")
	}
	if strings.HasSuffix(rest, "h0m") {
		rest = strings.TrimSuffix(rest, "0m")
	}
	return text + rest
}

// rows are the fields with their values; "-" is the default.
func (p *declaredPolicy) rows() [][2]string {
	v := reflect.ValueOf(*p)
	var out [][2]string
	for i := range v.NumField() {
		value := "-"
		if f := v.Field(i); !f.IsZero() || f.Kind() == reflect.Bool {
			value = fmt.Sprint(f.Interface())
		}
		out = append(out, [2]string{v.Type().Field(i).Tag.Get("yaml"), value})
	}
	return out
}

// weakens says what a new policy takes from what was promised before.
func weakens(before, after *warifuv1.ConsumerPolicy) []string {
	var out []string
	say := func(is bool, text string) {
		if is {
			out = append(out, text)
		}
	}
	windowBefore, retentionBefore := memory(before)
	windowAfter, retentionAfter := memory(after)
	say(windowAfter < windowBefore, "the redelivery window is shortened")
	say(retentionAfter < retentionBefore, "retention is shortened")
	was, is := declared(before), declared(after)
	say(was.OnLeaseLoss == "HOLD" && is.OnLeaseLoss != "HOLD", "lost leases are granted again, where somebody had to decide before")
	say(is.OnUnavailable == "FAIL_OPEN" && was.OnUnavailable != "FAIL_OPEN", "events may be handled unprotected while the store cannot be asked")
	say(was.DigestRequired && !is.DigestRequired, "digests are no longer required")
	say(is.AcceptNoCommonScheme && !was.AcceptNoCommonScheme, "digests that share no scheme agree from now on")
	return out
}

// memory is what window and retention come to.
func memory(p *warifuv1.ConsumerPolicy) (window, retention time.Duration) {
	const windowDefault = 24 * time.Hour
	window = cmp.Or(p.GetRedeliveryWindow().AsDuration(), windowDefault)
	return window, cmp.Or(p.GetRetention().AsDuration(), 2*window)
}
