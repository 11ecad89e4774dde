package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
)

// PoolKey is a cell of the pool's gauge.
type PoolKey struct{ State, HostClass string }

var poolHosts = prometheus.NewDesc("kpssh_pool_hosts", "SSHHosts in the pool namespace, by state and host class.", []string{"state", "class"}, nil)

// Pool is a collector that counts the pool's hosts when it is scraped.
type Pool func() map[PoolKey]int

// Describe implements prometheus.Collector.
func (p Pool) Describe(ch chan<- *prometheus.Desc) { ch <- poolHosts }

// Collect implements prometheus.Collector.
func (p Pool) Collect(ch chan<- prometheus.Metric) {
	for key, n := range p() {
		ch <- prometheus.MustNewConstMetric(poolHosts, prometheus.GaugeValue, float64(n), key.State, key.HostClass)
	}
}
