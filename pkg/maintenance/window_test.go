package maintenance

import (
	"strings"
	"testing"
	"time"
	_ "time/tzdata"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

func window(schedule string, duration time.Duration, zone string) v1beta1.MaintenanceWindow {
	return v1beta1.MaintenanceWindow{Schedule: schedule, Duration: metav1.Duration{Duration: duration}, TimeZone: zone}
}

func utc(text string) time.Time {
	at, err := time.Parse("2006-01-02 15:04:05", text)
	if err != nil {
		panic(err)
	}
	return at
}

// Issue 5 #7: a window opens at each start of its schedule in its own time zone, and closes when its duration is over.
func TestWindowsOpenAndClose(t *testing.T) {
	nightly := window("0 2 * * *", 2*time.Hour, "")
	for name, tc := range map[string]struct {
		windows []v1beta1.MaintenanceWindow
		at      string
		open    bool
		change  string // empty: never
	}{
		"no windows":                      {at: "2026-03-01 02:00:00"},
		"before":                          {[]v1beta1.MaintenanceWindow{nightly}, "2026-03-01 01:59:59", false, "2026-03-01 02:00:00"},
		"the first second":                {[]v1beta1.MaintenanceWindow{nightly}, "2026-03-01 02:00:00", true, "2026-03-01 04:00:00"},
		"the last second":                 {[]v1beta1.MaintenanceWindow{nightly}, "2026-03-01 03:59:59", true, "2026-03-01 04:00:00"},
		"over":                            {[]v1beta1.MaintenanceWindow{nightly}, "2026-03-01 04:00:00", false, "2026-03-02 02:00:00"},
		"another zone":                    {[]v1beta1.MaintenanceWindow{window("0 2 * * *", time.Hour, "America/New_York")}, "2026-03-01 07:30:00", true, "2026-03-01 08:00:00"},
		"a zone with summer time, before": {[]v1beta1.MaintenanceWindow{window("0 4 * * *", time.Hour, "Europe/Berlin")}, "2026-03-28 03:30:00", true, "2026-03-28 04:00:00"},
		"a zone with summer time, after":  {[]v1beta1.MaintenanceWindow{window("0 4 * * *", time.Hour, "Europe/Berlin")}, "2026-03-29 02:30:00", true, "2026-03-29 03:00:00"},
		"an hour is an hour over the change of the clocks": {[]v1beta1.MaintenanceWindow{window("30 1 29 3 *", 2*time.Hour, "Europe/Berlin")},
			"2026-03-29 02:29:59", true, "2026-03-29 02:30:00"},
		"over midnight":        {[]v1beta1.MaintenanceWindow{window("0 22 * * SAT", 8*time.Hour, "")}, "2026-03-01 05:00:00", true, "2026-03-01 06:00:00"},
		"longer than its step": {[]v1beta1.MaintenanceWindow{window("0 * * * *", 90*time.Minute, "")}, "2026-03-01 05:10:00", true, "2026-03-01 05:30:00"},
		"always open":          {[]v1beta1.MaintenanceWindow{window("* * * * *", 168*time.Hour, "")}, "2026-03-01 05:10:30", true, "2026-03-01 05:11:00"},
		"two, one open":        {[]v1beta1.MaintenanceWindow{window("0 9 * * *", time.Hour, ""), nightly}, "2026-03-01 02:30:00", true, "2026-03-01 04:00:00"},
		"two open":             {[]v1beta1.MaintenanceWindow{window("0 1 * * *", 9*time.Hour, ""), nightly}, "2026-03-01 02:30:00", true, "2026-03-01 10:00:00"},
		"two closed":           {[]v1beta1.MaintenanceWindow{window("0 9 * * *", time.Hour, ""), nightly}, "2026-03-01 08:00:00", false, "2026-03-01 09:00:00"},
	} {
		got, err := At(tc.windows, utc(tc.at))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		want := time.Time{}
		if tc.change != "" {
			want = utc(tc.change)
		}
		if got.Open != tc.open || !got.Change.Equal(want) || (got.Window != nil) != tc.open {
			t.Errorf("%s: open %t until %s, want %t until %s", name, got.Open, got.Change, tc.open, want)
		}
	}
}

// Looking only when told to misses no change.
func TestChangesAreForetold(t *testing.T) {
	windows := []v1beta1.MaintenanceWindow{window("*/7 3-5 * * *", 3*time.Minute, "Europe/Berlin"), window("15 */6 * * MON-FRI", 40*time.Minute, "Asia/Kolkata")}
	at, end := utc("2026-03-27 00:00:00"), utc("2026-03-31 00:00:00")
	status, _ := At(windows, at)
	for ; at.Before(end); at = at.Add(30 * time.Second) {
		now, _ := At(windows, at)
		if now.Open != status.Open && at.Before(status.Change) {
			t.Fatalf("open became %t at %s; a change was foretold for %s", now.Open, at, status.Change)
		}
		if !at.Before(status.Change) || now.Open != status.Open {
			status = now
		}
		if !status.Change.After(at) {
			t.Fatalf("at %s the next look was to be at %s", at, status.Change)
		}
	}
}

// What the API cannot check is found here; the windows beside it count.
func TestWindowsThatCannotBeRead(t *testing.T) {
	for name, tc := range map[string]struct {
		window v1beta1.MaintenanceWindow
		word   string
	}{
		"no such zone":       {window("0 2 * * *", time.Hour, "Mars/Olympus"), "Mars/Olympus"},
		"the controller's":   {window("0 2 * * *", time.Hour, "Local"), "IANA"},
		"a path":             {window("0 2 * * *", time.Hour, "../../etc/passwd"), "IANA"},
		"hour 25":            {window("0 25 * * *", time.Hour, ""), "minute, hour"},
		"six fields":         {window("0 0 2 * * *", time.Hour, ""), "minute, hour"},
		"a word":             {window("@daily", time.Hour, ""), "minute, hour"},
		"a zone within":      {window("CRON_TZ=UTC 0 2 * * *", time.Hour, ""), "use timeZone"},
		"nothing":            {window("", time.Hour, ""), "minute, hour"},
		"the 30th of a Feb.": {window("0 0 30 2 *", time.Hour, ""), "never comes"},
		"no time":            {window("0 2 * * *", 0, ""), "above zero"},
		"less than no time":  {window("0 2 * * *", -time.Hour, ""), "above zero"},
	} {
		status, err := At([]v1beta1.MaintenanceWindow{tc.window, window("0 2 * * *", time.Hour, "")}, utc("2026-03-01 02:30:00"))
		if f := fault.Of(err); f == nil || f.Blame != fault.Configuration || f.Reason != v1beta1.ReasonMaintenanceWindowInvalid ||
			!strings.Contains(err.Error(), tc.word) || !strings.Contains(err.Error(), "spec.maintenanceWindows[0]") {
			t.Errorf("%s: %v", name, err)
		}
		if !status.Open || status.Window.Schedule != "0 2 * * *" {
			t.Errorf("%s: the other window is %+v", name, status)
		}
	}
}
