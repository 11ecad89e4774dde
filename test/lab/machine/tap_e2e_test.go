//go:build linux && e2e

package machine

import "testing"

func tap(t *testing.T, s *Station) *Tap {
	t.Helper()
	tap, err := s.Tap()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tap.Close(); err != nil {
			t.Error(err)
		}
	})
	return tap
}

func dials(t *testing.T, tap *Tap) map[Dial]int {
	t.Helper()
	dials, err := tap.Dials()
	if err != nil {
		t.Fatal(err)
	}
	return dials
}
