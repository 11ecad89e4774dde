// Package maintenance decides whether a host is in one of its maintenance windows, and when that changes next. It knows only what the
// SSHHost says and the time that it is told, and writes nothing.
package maintenance

import (
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// Status is where a host stands with its windows.
type Status struct {
	// Open tells whether a window is open.
	Open bool
	// Change is when to look again: no later than Open changes. Zero: it never does.
	Change time.Time
	// Window is the one that is open; nil if none is.
	Window *v1beta1.MaintenanceWindow
}

// String says in words which window is open.
func (s Status) String() string {
	if s.Window == nil {
		return "no maintenance window is open"
	}
	return fmt.Sprintf("the maintenance window %q of %s is open until %s, or longer if another follows", s.Window.Schedule, zoneName(s.Window), s.Change.UTC().Format(time.RFC3339))
}

// At judges windows at a time. A window that cannot be read is never open, and the first one is the error: Configuration/
// MaintenanceWindowInvalid. The others count all the same.
func At(windows []v1beta1.MaintenanceWindow, now time.Time) (Status, error) {
	var status Status
	var invalid error
	for i := range windows {
		open, change, err := at(&windows[i], now)
		if err != nil {
			if invalid == nil {
				invalid = fault.New(fault.Configuration, v1beta1.ReasonMaintenanceWindowInvalid, err, "spec.maintenanceWindows[%d]: it is never open", i)
			}
			continue
		}
		switch {
		case open && (!status.Open || change.After(status.Change)):
			status = Status{Open: true, Change: change, Window: &windows[i]}
		case !open && !status.Open && !change.IsZero() && (status.Change.IsZero() || change.Before(status.Change)):
			status.Change = change
		}
	}
	return status, invalid
}

// parser takes the five fields that every cron has, and no @words.
var parser = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)

// at judges one window. It is open from each start of its schedule on, for its duration.
func at(w *v1beta1.MaintenanceWindow, now time.Time) (open bool, change time.Time, err error) {
	zone, err := time.LoadLocation(zoneName(w))
	if err != nil || strings.EqualFold(w.TimeZone, "local") { // "Local" is the controller's zone, which means nothing to a host
		return false, time.Time{}, fmt.Errorf("timeZone %q is not in the IANA time zone database: use a name such as Europe/Berlin", w.TimeZone)
	}
	if strings.Contains(w.Schedule, "=") {
		return false, time.Time{}, fmt.Errorf("schedule %q sets a time zone: use timeZone", w.Schedule)
	}
	schedule, err := parser.Parse(w.Schedule)
	if err != nil {
		return false, time.Time{}, fmt.Errorf("schedule %q is not a cron schedule (minute, hour, day of month, month, day of week): %w", w.Schedule, err)
	}
	duration := w.Duration.Duration
	if duration <= 0 {
		return false, time.Time{}, fmt.Errorf("duration %s is not above zero", duration)
	}
	local := now.In(zone)
	start := schedule.Next(local.Add(-duration)) // strictly after: what started then is over now
	switch {
	case start.IsZero(): // such as 30 February
		return false, time.Time{}, fmt.Errorf("schedule %q never comes", w.Schedule)
	case !start.After(local):
		return true, start.Add(duration), nil
	}
	return false, start, nil
}

func zoneName(w *v1beta1.MaintenanceWindow) string {
	if w.TimeZone == "" {
		return "UTC"
	}
	return w.TimeZone
}
