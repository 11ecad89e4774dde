package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var alive = prometheus.NewDesc("kpssh_instance_alive",
	"1 for each instance, by name, whose lease is renewed, as this instance sees it; 0 for one that ended without giving its lease back, or that owns classes and is not there.",
	[]string{"name"}, nil)

// Alive tells, when it is scraped, which instances are alive. One of which that is not known yet, or that nobody misses, is left out.
type Alive func() map[string]bool

// Describe implements prometheus.Collector.
func (a Alive) Describe(ch chan<- *prometheus.Desc) { ch <- alive }

// Collect implements prometheus.Collector.
func (a Alive) Collect(ch chan<- prometheus.Metric) {
	for name, lives := range a() {
		value := 0.0
		if lives {
			value = 1
		}
		ch <- prometheus.MustNewConstMetric(alive, prometheus.GaugeValue, value, name)
	}
}

// Credential is what stops working at a time that is known. Name is that of the Secret or class it stands in, never of its content.
type Credential struct{ Kind, Name string }

var expiry = prometheus.NewDesc("kpssh_credential_expiry_timestamp_seconds",
	"When a credential expires, in seconds since 1970, by kind (ssh_certificate, cluster_ca) and name of what holds it.", []string{"kind", "name"}, nil)

// Expiries lists, when it is scraped, the credentials that expire.
type Expiries func() map[Credential]time.Time

// Describe implements prometheus.Collector.
func (e Expiries) Describe(ch chan<- *prometheus.Desc) { ch <- expiry }

// Collect implements prometheus.Collector.
func (e Expiries) Collect(ch chan<- prometheus.Metric) {
	for c, at := range e() {
		ch <- prometheus.MustNewConstMetric(expiry, prometheus.GaugeValue, float64(at.Unix()), c.Kind, c.Name)
	}
}
