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

// invocation is a command line of systemctl.
type invocation struct {
	verb       string
	units      []string
	now, quiet bool
	properties []string
}

func parseInvocation(args []string) invocation {
	i := invocation{properties: []string{"ActiveState", "UnitFileState"}}
	options := true
	for _, arg := range args {
		switch {
		case options && arg == "--":
			options = false
		case options && strings.HasPrefix(arg, "-"):
			if list, found := strings.CutPrefix(arg, "--property="); found {
				i.properties = strings.Split(list, ",")
			}
			i.now = i.now || arg == "--now"
			i.quiet = i.quiet || arg == "--quiet" || arg == "-q"
		case i.verb == "":
			i.verb = arg
		default:
			i.units = append(i.units, strings.TrimSuffix(arg, ".service"))
		}
	}
	return i
}

// systemctl is the program: exit code, stream (1 or 2) and text.
func (s *services) systemctl(args []string) (code, stream int, text string) {
	i := parseInvocation(args)
	switch i.verb {
	case "":
		return 1, 2, "systemctl: no command\n"
	case "daemon-reload", "is-system-running":
		return 0, 1, ""
	}
	if len(i.units) == 0 {
		return 1, 2, "systemctl " + i.verb + ": too few arguments\n"
	}
	var out strings.Builder
	for _, unit := range i.units {
		query, isQuery := queries[i.verb]
		if isQuery {
			code = max(code, query(s, i, unit, &out))
			continue
		}
		if code, message := s.act(i, unit); code != 0 {
			return code, 2, message + "\n"
		}
	}
	if i.quiet {
		return code, 1, ""
	}
	return code, 1, out.String()
}

// queries are the verbs that only look; each returns an exit code.
var queries = map[string]func(s *services, i invocation, unit string, out *strings.Builder) int{
	"is-active": func(s *services, _ invocation, unit string, out *strings.Builder) int {
		state := s.activeState(unit)
		fmt.Fprintln(out, state)
		if state != "active" {
			return 3
		}
		return 0
	},
	"is-enabled": func(s *services, _ invocation, unit string, out *strings.Builder) int {
		state := s.fileState(unit)
		fmt.Fprintln(out, state)
		if state != "enabled" {
			return 1
		}
		return 0
	},
	"show": func(s *services, i invocation, unit string, out *strings.Builder) int {
		values := map[string]string{"ActiveState": s.activeState(unit), "UnitFileState": s.fileState(unit), "Id": unit + ".service"}
		for _, property := range i.properties {
			if value, known := values[property]; known {
				fmt.Fprintf(out, "%s=%s\n", property, value)
			}
		}
		return 0
	},
}

// act changes something; the message explains a code that is not 0.
func (s *services) act(i invocation, unit string) (code int, message string) {
	if !s.exists(unit) {
		why := " not found."
		if i.verb == "stop" || i.verb == "disable" || i.verb == "reset-failed" {
			why = " not loaded."
		}
		return 5, "Failed to " + i.verb + " " + unit + ".service: Unit " + unit + ".service" + why
	}
	switch i.verb {
	case "enable", "disable":
		s.mu.Lock()
		s.enabled[unit] = i.verb == "enable"
		s.mu.Unlock()
		if i.now && i.verb == "enable" {
			s.start(unit)
		} else if i.now {
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
		return 1, "Unknown command verb " + i.verb + ", or the simulated machine does not know it."
	}
	return 0, ""
}

func (s *services) activeState(unit string) string {
	if s.isActive(unit) {
		return "active"
	}
	return "inactive"
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
