package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
)

// PoolKey is a cell of the pool's gauge.
type PoolKey struct{ State, HostClass string }

// HostTrouble is something that a person has to look at on one host. Series of it go with their cause, so that they may name the host.
type HostTrouble struct{ Host, HostClass, Trouble string }

// PoolStats are what can be counted of the pool's hosts.
type PoolStats struct {
	// Hosts by state and host class; states without hosts included.
	Hosts map[PoolKey]int
	// Oldest is for how many seconds the host has been in a state that has been there longest; states that end by themselves only.
	Oldest map[string]float64
	// Troubles that there are. No two are equal.
	Troubles []HostTrouble
	// Tokens are bootstrap tokens that hosts have on record, and Overdue those of them whose lifetime is over.
	Tokens, Overdue int
}

// Pool is a collector that counts the pool's hosts when it is scraped.
type Pool func() PoolStats

var (
	poolHosts  = prometheus.NewDesc("kpssh_pool_hosts", "SSHHosts in the pool namespace, by state and host class.", []string{"state", "class"}, nil)
	poolOldest = prometheus.NewDesc("kpssh_pool_oldest_seconds",
		"For how long the host that has been longest in a state (Pending, Claimed, Leaving) has been seen in it; 0 if there is none.", []string{"state"}, nil)
	hostTrouble = prometheus.NewDesc("kpssh_host_trouble",
		"1 for each host that a person has to look at, by host, host class and trouble (HostKeyMismatch, ForeignKubelet, LeavePending, HostOwnedElsewhere, ClockSkewed, Quarantined).",
		[]string{"host", "class", "trouble"}, nil)
	poolTokens = prometheus.NewDesc("kpssh_bootstrap_tokens",
		"Bootstrap tokens that SSHHosts have on record, by state (outstanding, overdue: its lifetime is over and it was not deleted).", []string{"state"}, nil)
)

// Describe implements prometheus.Collector.
func (p Pool) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{poolHosts, poolOldest, hostTrouble, poolTokens} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (p Pool) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	stats := p()
	for key, n := range stats.Hosts {
		gauge(poolHosts, float64(n), key.State, key.HostClass)
	}
	for state, seconds := range stats.Oldest {
		gauge(poolOldest, seconds, state)
	}
	for _, t := range stats.Troubles {
		gauge(hostTrouble, 1, t.Host, t.HostClass, t.Trouble)
	}
	gauge(poolTokens, float64(stats.Tokens), "outstanding")
	gauge(poolTokens, float64(stats.Overdue), "overdue")
}
