package sim

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// services is a machine's service manager: as much of systemd as join scripts use. A unit exists if its file is in the machine's
// /etc/systemd/system, or if it is one that every machine has. The kubelet is real to the cluster; other units do nothing.
type services struct {
	unitDir string
	builtin []string
	// run is what the unit does until its context ends; nil does nothing.
	run func(ctx context.Context, unit string)

	mu      sync.Mutex
	off     bool
	active  map[string]*service
	enabled map[string]bool
}

type service struct {
	cancel context.CancelFunc
	done   chan struct{}
}

func newServices(unitDir string, run func(ctx context.Context, unit string)) *services {
	return &services{
		unitDir: unitDir, run: run, builtin: []string{"containerd"}, off: true,
		active: map[string]*service{}, enabled: map[string]bool{"containerd": true},
	}
}

// systemctl is the program: exit code, stream (1 or 2) and text.
func (s *services) systemctl(args []string) (code, stream int, text string) {
	var verb string
	var units []string
	var now, quiet, endOfOptions bool
	properties := []string{"ActiveState", "UnitFileState"}
	for _, arg := range args {
		switch {
		case arg == "--" && !endOfOptions:
			endOfOptions = true
		case strings.HasPrefix(arg, "-") && !endOfOptions:
			if list, found := strings.CutPrefix(arg, "--property="); found {
				properties = strings.Split(list, ",")
			}
			now = now || arg == "--now"
			quiet = quiet || arg == "--quiet" || arg == "-q"
		case verb == "":
			verb = arg
		default:
			units = append(units, strings.TrimSuffix(arg, ".service"))
		}
	}
	var out strings.Builder
	for _, unit := range units {
		if unitCode, message := s.do(verb, unit, now, properties, &out); unitCode != 0 {
			code = unitCode
			if message != "" {
				return code, 2, message + "\n"
			}
		}
	}
	switch verb {
	case "daemon-reload", "reset-failed", "is-system-running":
	case "":
		return 1, 2, "systemctl: no command\n"
	default:
		if len(units) == 0 {
			return 1, 2, "systemctl " + verb + ": too few arguments\n"
		}
	}
	if quiet {
		return code, 1, ""
	}
	return code, 1, out.String()
}

func (s *services) do(verb, unit string, now bool, properties []string, out *strings.Builder) (code int, message string) {
	state := map[bool]string{true: "active", false: "inactive"}
	switch verb {
	case "is-active":
		active := s.isActive(unit)
		fmt.Fprintln(out, state[active])
		if !active {
			return 3, ""
		}
		return 0, ""
	case "is-enabled":
		fileState := s.fileState(unit)
		fmt.Fprintln(out, fileState)
		if fileState != "enabled" {
			return 1, ""
		}
		return 0, ""
	case "show":
		values := map[string]string{"ActiveState": state[s.isActive(unit)], "UnitFileState": s.fileState(unit), "Id": unit + ".service"}
		for _, property := range properties {
			if value, known := values[property]; known {
				fmt.Fprintf(out, "%s=%s\n", property, value)
			}
		}
		return 0, ""
	}
	if !s.exists(unit) {
		if verb == "stop" || verb == "reset-failed" || verb == "disable" {
			return 5, "Failed to " + verb + " " + unit + ".service: Unit " + unit + ".service not loaded."
		}
		return 5, "Failed to " + verb + " " + unit + ".service: Unit " + unit + ".service not found."
	}
	switch verb {
	case "enable", "disable":
		s.mu.Lock()
		s.enabled[unit] = verb == "enable"
		s.mu.Unlock()
		if !now {
			return 0, ""
		}
		if verb == "enable" {
			s.start(unit)
		} else {
			s.stop(unit)
		}
	case "start":
		s.start(unit)
	case "stop":
		s.stop(unit)
	case "restart", "reload-or-restart":
		s.stop(unit)
		s.start(unit)
	case "reset-failed":
	default:
		return 1, "Unknown command verb " + verb + ", or the simulated machine does not know it."
	}
	return 0, ""
}

func (s *services) exists(unit string) bool {
	if slices.Contains(s.builtin, unit) {
		return true
	}
	_, err := os.Stat(filepath.Join(s.unitDir, unit+".service"))
	return err == nil
}

func (s *services) fileState(unit string) string {
	s.mu.Lock()
	enabled := s.enabled[unit]
	s.mu.Unlock()
	switch {
	case !s.exists(unit):
		return ""
	case enabled:
		return "enabled"
	}
	return "disabled"
}

func (s *services) isActive(unit string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.active[unit] != nil
}

func (s *services) start(unit string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.off || s.active[unit] != nil {
		return
	}
	ctx, cancel := background()
	running := &service{cancel: cancel, done: make(chan struct{})}
	s.active[unit] = running
	go func() {
		defer close(running.done)
		s.run(ctx, unit)
		cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.active[unit] == running {
			delete(s.active, unit)
		}
	}()
}

// stop returns when the unit has stopped.
func (s *services) stop(unit string) {
	s.mu.Lock()
	running := s.active[unit]
	s.mu.Unlock()
	if running == nil {
		return
	}
	running.cancel()
	<-running.done
}

// powerOff ends everything at once; powerOn starts what is enabled.
func (s *services) powerOff() {
	s.mu.Lock()
	s.off = true
	var ending []*service
	for _, running := range s.active {
		running.cancel()
		ending = append(ending, running)
	}
	s.mu.Unlock()
	for _, running := range ending {
		<-running.done
	}
}

func (s *services) powerOn() {
	s.mu.Lock()
	s.off = false
	var units []string
	for unit, enabled := range s.enabled {
		if enabled {
			units = append(units, unit)
		}
	}
	s.mu.Unlock()
	for _, unit := range units {
		if s.exists(unit) {
			s.start(unit)
		}
	}
}

// forget is for a machine with a new disk.
func (s *services) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.enabled)
	s.enabled["containerd"] = true
}
