package sim

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/test/lab/sim/kubelet"
)

// runService is what units do.
func (m *Machine) runService(ctx context.Context, unit string) {
	if unit != "kubelet" || m.fleet.watches == nil {
		<-ctx.Done()
		return
	}
	m.journal.add(EntryKubeletStart, "", "")
	defer m.journal.add(EntryKubeletStop, "", "")
	log := m.openLog("kubelet")
	defer log.close()
	for ctx.Err() == nil {
		// Like systemd, start it again for as long as it fails.
		if err := m.runKubelet(ctx, log); err != nil && ctx.Err() == nil {
			log.printf("exited: %v", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

func (m *Machine) runKubelet(ctx context.Context, log *serviceLog) error {
	config, err := kubelet.ReadConfig(filepath.Join(m.root, "etc/kubernetes/kubelet.env"))
	if err != nil {
		return err
	}
	m.mu.Lock()
	bootID := m.bootID
	m.mu.Unlock()
	return kubelet.Run(ctx, kubelet.Options{
		Config:              config,
		BootstrapKubeconfig: filepath.Join(m.root, "etc/kubernetes/bootstrap-kubelet.conf"),
		StateDir:            filepath.Join(m.root, "var/lib/kubelet"),
		Machine: kubelet.Machine{
			Arch: m.spec.Arch, MachineID: m.id, BootID: bootID,
			Capacity: m.spec.capacity(),
		},
		Watches: m.fleet.watches, Version: m.fleet.version, Heartbeat: m.fleet.opts.Heartbeat,
		ReadyDelay: m.fleet.opts.ReadyDelay, PodStartDelay: m.fleet.opts.PodStartDelay, PodStopDelay: m.fleet.opts.PodStopDelay,
		Log: log.printf,
	})
}

// serviceLog is a unit's journal, on the machine's disk.
type serviceLog struct {
	mu   sync.Mutex
	file *os.File
}

func (m *Machine) openLog(unit string) *serviceLog {
	file, err := os.OpenFile(m.logPath(unit), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		fmt.Fprintf(m.fleet.opts.Log, "sim: %s: %v\n", m.spec.Name, err)
		return &serviceLog{}
	}
	return &serviceLog{file: file}
}

func (m *Machine) logPath(unit string) string { return filepath.Join(m.root, "var/log", unit+".log") }

// Log is what a unit has said so far ("kubelet"), for failure messages.
func (m *Machine) Log(unit string) string {
	content, err := os.ReadFile(m.logPath(unit))
	if err != nil {
		return err.Error()
	}
	return string(content)
}

func (l *serviceLog) printf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		fmt.Fprintf(l.file, "%s %s\n", time.Now().Format("15:04:05.000"), fmt.Sprintf(format, args...))
	}
}

func (l *serviceLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		l.file.Close()
		l.file = nil
	}
}
