// Package fault says whose fault a failure is. The answer decides what happens next: a configuration fault is reported on the
// class and touches no host, a host fault parks the host, a network fault is tried again before the host is parked, a
// cluster fault is retried and blames nobody. The package decides nothing and writes nothing.
package fault

import (
	"context"
	"errors"
	"fmt"
)

// Blame is whose fault a failure is.
type Blame string

// Parties that can be at fault.
const (
	// Configuration: a user's object is wrong. No host is to blame; a person must edit something.
	Configuration Blame = "configuration"
	// Host: the machine answered and failed.
	Host Blame = "host"
	// Network: the machine could not be reached, or the connection broke.
	Network Blame = "network"
	// Cluster: the API server or this process failed; trying again is right.
	Cluster Blame = "cluster"
)

// Error is a failure with its party, a machine-readable reason and a text that tells a person what to do.
type Error struct {
	// Blame is the party at fault.
	Blame Blame
	// Reason in CamelCase, as conditions and events carry it.
	Reason string
	// Message names the object and what to do about it. It never holds a secret.
	Message string
	// Err is the cause; may be nil.
	Err error
	// Before tells that the failure lies before the machine, such as at a jump host or in a certificate: the machine was not asked, so
	// whatever was known about it still holds.
	Before bool
}

// New makes an Error; err may be nil.
func New(blame Blame, reason string, err error, format string, args ...any) *Error {
	return &Error{Blame: blame, Reason: reason, Message: fmt.Sprintf(format, args...), Err: err}
}

// BeforeMachine marks the failure as one that lies before the machine.
func (e *Error) BeforeMachine() *Error {
	e.Before = true
	return e
}

// Error implements error: the message, then the cause.
func (e *Error) Error() string {
	if e.Err == nil {
		return e.Message
	}
	return e.Message + ": " + e.Err.Error()
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Of finds the Error in a chain. An error that carries none is the cluster's or this process's own; a cancelled context is too.
func Of(err error) *Error {
	if err == nil {
		return nil
	}
	var found *Error
	if errors.As(err, &found) {
		return found
	}
	if errors.Is(err, context.Canceled) {
		return &Error{Blame: Cluster, Reason: "Cancelled", Message: "cancelled", Err: err}
	}
	return &Error{Blame: Cluster, Reason: "Error", Message: "unexpected failure", Err: err}
}

// Is tells whether err is the fault of this party.
func Is(err error, blame Blame) bool { return err != nil && Of(err).Blame == blame }
