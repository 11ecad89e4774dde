// Package ssh is the transport to a machine: it dials, verifies the host key, logs in and runs one phase's script at a time.
//
// It decides whether the machine at the other end is the pinned one, which failures are the network's and which are the
// machine's, and when a phase is over. It knows nothing of Kubernetes; the machine is all it writes to, and there only the
// state directory (/var/lib/kpssh: lock, owner, epoch.<host UID>, run) besides what the script itself does.
//
// A script goes to a shell under a supervisor (Raw), or to a shim on the machine that checks its signature first and brings the same supervisor
// (Verified). What a caller sees of both is the same.
//
// Nothing here blocks for ever: every stage (TCP, handshake, authentication, channel open, first byte, run) has its own
// deadline, names itself when it fails, and ends when its context does. Failures that callers act on are *fault.Error.
package ssh
