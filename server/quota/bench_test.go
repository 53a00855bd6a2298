package quota

import (
	"testing"

	"github.com/warifu/warifu/storage/claim"
)

// BenchmarkCall is all that a claim within its quotas pays, and half of a
// completion: request, share, item, levels, and the notes.
func BenchmarkCall(b *testing.B) {
	l := &Limits{1 << 40, 1 << 40, 1 << 40, 1 << 40, 1 << 40, 1 << 40}
	call := func(q *Quotas, id claim.TenantID, r *claim.Request, a *claim.Answer) {
		_ = q.TakeRequest(id, l)
		slot, _ := q.Enter(id, 64, false)
		q.TakeItems(id, l, 1)
		if s := q.Standing(id, l, 1); s.Tight() {
			b.Error("tight")
		}
		q.NoteClaim(id, r, a)
		slot.Leave()
	}
	r, a := request("e"), claim.Answer{Decision: claim.Granted, Lease: 1 << 40}
	b.Run("serial", func(b *testing.B) {
		q, _ := setup(b)
		b.ReportAllocs()
		for b.Loop() {
			call(q, shop, &r, &a)
		}
	})
	b.Run("parallel", func(b *testing.B) {
		q, _ := setup(b)
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				call(q, shop, &r, &a)
			}
		})
	})
}

func BenchmarkTakeItems(b *testing.B) {
	q, _ := setup(b)
	l := &Limits{Items: 1 << 40}
	b.ReportAllocs()
	for b.Loop() {
		q.TakeItems(shop, l, 100)
	}
}

func BenchmarkStanding(b *testing.B) {
	q, _ := setup(b)
	l := &Limits{LiveLeases: 1 << 40, Keys: 1 << 40}
	b.ReportAllocs()
	for b.Loop() {
		s := q.Standing(shop, l, 100)
		_ = s.Tight()
	}
}
