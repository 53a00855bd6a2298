package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/warifu/warifu/server/overload"
)

// overloadGauges show what the limiter does with calls: room is what they need
// before their body is read, a slot what they need before the store is asked.
func overloadGauges() []gauge {
	out := []gauge{
		level("warifu_rpc_in_flight", "Calls that have room.", func(s *snapshot) float64 { return float64(s.server.limiter.InFlight()) }),
		level("warifu_rpc_slots", "Calls that may ask the store at once: fewer when it is slow.", func(s *snapshot) float64 { return float64(s.server.limiter.Limit()) }),
		level("warifu_rpc_slots_used", "Calls that ask the store now.", func(s *snapshot) float64 { return float64(s.server.limiter.Working()) }),
		counter("warifu_rpc_slot_wait_seconds_total", "How long calls have waited for slots, all together.", func(s *snapshot) float64 { return s.server.limiter.WaitSeconds() }),
		counter("warifu_auth_throttled_total", "Calls without a valid key that were told to stop: their address had sent too many.", func(s *snapshot) float64 { return float64(s.server.throttle.Refused()) }),
	}
	for class := range overload.Class(overload.Classes) {
		labels := prometheus.Labels{"class": class.String()}
		out = append(out,
			labelled("warifu_rpc_shed_total", "Calls refused because too many were in flight; nothing was asked of the store.", labels, prometheus.CounterValue,
				func(s *snapshot) float64 { return float64(s.server.limiter.ShedOf(class)) }),
			labelled("warifu_rpc_admitted_total", "Calls that were given a slot.", labels, prometheus.CounterValue,
				func(s *snapshot) float64 { return float64(s.server.limiter.Admitted(class)) }),
			labelled("warifu_rpc_queued", "Calls that wait for a slot.", labels, prometheus.GaugeValue,
				func(s *snapshot) float64 { return float64(s.server.limiter.Queued(class)) }),
		)
	}
	return out
}
