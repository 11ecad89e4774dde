// Package host keeps the inventory of one pool namespace: which machines there are, which may be claimed, and who holds them.
// It decides which host a claim gets and is the only writer of SSHHost.status; it writes nothing else and opens no connection.
//
// Safety does not rest on this process being alone. Every write carries the resourceVersion it was decided on, and every
// change of a claimed host is fenced on the claim's UID. Inside the process, writes to one host are serialised, so that the
// only conflicts left are with people and with another replica.
package host
