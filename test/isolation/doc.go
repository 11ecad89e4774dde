// Package isolation shows what the API server refuses to an instance that tries to leave its segment, and what it lets it do in it: the chart's RBAC and
// admission policies of two releases, on a real API server. What each mechanism holds is told in adr/0009.
package isolation
